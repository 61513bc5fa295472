"""Bundles: what was fetched, carried in one file to a machine without network."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from test_git import make_repository, source

from smwheel.environment import make, stored_wheels
from smwheel.errors import HashMismatchError, NetworkError, SourceError
from smwheel.sources.bundle import read_bundle, write_bundle
from smwheel.sources.git import fetch_git, records, stored_digest
from smwheel.sources.store import Store, file_digest
from smwheel.wheels.wheelfile import write_wheel


def test_a_commit_and_its_tag_are_carried(tmp_path: Path) -> None:
    make_repository(tmp_path / "up", {"a": "a\n"})
    shutil.copytree(tmp_path / "up", tmp_path / "kept")
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    subprocess.run(["git", "-C", str(tmp_path / "up"), "tag", "v1"], check=True)
    wanted = source(tmp_path / "up", tag="v1")
    first = fetch_git(wanted, here)
    bundle = tmp_path / "bundle.tar"
    assert write_bundle(bundle, here, [stored_digest(wanted, here)], records(wanted, here)) == 1
    shutil.rmtree(tmp_path / "up")
    shutil.rmtree(tmp_path / "here")
    assert read_bundle(bundle, there) == 1
    second = fetch_git(wanted, there, offline=True)
    assert second.commit == first.commit
    assert second.archive.name == first.archive.name
    assert read_bundle(bundle, there) == 1  # once more changes nothing


def test_the_same_bundle_twice_is_the_same_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "a").write_text("a")
    digest = store.add(tmp_path / "a", "a.whl").parent.name
    for name in ("one", "two"):
        write_bundle(tmp_path / name, store, [digest, digest], [])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_damaged_file_is_in_no_bundle_and_a_bundle_mends_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "a").write_text("a")
    path = store.add(tmp_path / "a", "a.whl")
    write_bundle(tmp_path / "bundle", store, [path.parent.name], [])
    path.chmod(0o644)
    path.write_text("b")
    with pytest.raises(HashMismatchError) as caught:
        write_bundle(tmp_path / "other", store, [path.parent.name], [])
    assert caught.value.where == str(path)
    read_bundle(tmp_path / "bundle", store)
    assert path.read_text() == "a"


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("members", "kind", "message"),
    [
        ({f"sha256/{'0' * 64}/a.whl": b"other bytes"}, HashMismatchError, "pinned is 0000"),
        ({"../../etc/x": b""}, SourceError, "belongs into no bundle"),
        ({"git/tags/../../x.json": b"{}"}, SourceError, "belongs into no bundle"),
        ({"git/tags/ab.json": b"[1]"}, SourceError, "is damaged"),
        ({"git/tags/ab.json": b"no json"}, SourceError, "is damaged"),
    ],
)
def test_nothing_in_a_bundle_is_believed(
    tmp_path: Path, members: dict[str, bytes], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        read_bundle(tar(tmp_path / "b.tar", members), Store(tmp_path / "store"))
    assert not list((tmp_path / "store").rglob("*.whl"))


def test_a_cut_bundle_and_none_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "a").write_bytes(b"a" * 100_000)
    write_bundle(tmp_path / "whole", store, [store.add(tmp_path / "a", "a.whl").parent.name], [])
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:50_000])
    for name in ("cut", "none"):
        with pytest.raises(SourceError):
            read_bundle(tmp_path / name, Store(tmp_path / "other"))
    with pytest.raises(SourceError, match="the store lacks"):
        write_bundle(tmp_path / "x", store, ["1" * 64], [])


def test_an_environment_is_made_offline_of_stored_wheels(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    wheel = write_wheel(tmp_path, distribution="demo", version="1.0", tags=["py3-none-any"], files=[("demo.py", b"")])
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"demo==1.0 \\\n    --hash=sha256:{file_digest(wheel)}\n")
    assert stored_wheels(lock, store) == []
    with pytest.raises(NetworkError, match="--offline forbids making it"):
        make(requirements_file=lock, cache_root=tmp_path / "cache", offline=True, store=store)
    stored = store.add(wheel, wheel.name)
    assert stored_wheels(lock, store) == [stored]
    made = make(requirements_file=lock, cache_root=tmp_path / "cache", offline=True, store=store)
    assert list(made.root.rglob("demo.py"))
