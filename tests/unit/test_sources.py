"""Finding files through pip's settings and bringing them into the store: a local server, local directories."""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from httpfiles import Files, Server

from smwheel.errors import HashMismatchError, LockedError, NetworkError, SourceError
from smwheel.locks import locked
from smwheel.sources.registry import fetch
from smwheel.sources.settings import IndexSettings, pip_settings
from smwheel.sources.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "demo_pkg-1.0.tar.gz"
DATA = os.urandom(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


@pytest.fixture
def files() -> Iterator[Files]:
    with Server() as served:
        served.content["/files/" + NAME] = DATA
        served.content["/simple/demo-pkg/"] = html_page(f"../../files/{NAME}#sha256={DIGEST}")
        served.types["/simple/demo-pkg/"] = "text/html"
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def html_page(*hrefs: str) -> bytes:
    return "".join(f'<a href="{href}">file</a>\n' for href in hrefs).encode()


def index(files: Files) -> IndexSettings:
    return IndexSettings(indexes=(files.url + "/simple",))


def bring(store: Store, settings: IndexSettings, **options: object) -> Path:
    arguments = {"sha256": DIGEST, "size": len(DATA)} | options
    return fetch("Demo.Pkg", NAME, store=store, settings=settings, **arguments)  # type: ignore[arg-type]


def downloads(files: Files) -> list[str]:
    """The Range header of each request for the file."""
    return [wanted for path, wanted in files.asked if path.startswith("/files/")]


def part(store: Store) -> Path:
    return store.root / "partial" / f"{DIGEST}.part"


def nothing_kept(store: Store) -> bool:
    return not list(store.root.rglob("*.part")) and store.path(DIGEST) is None


def test_a_file_comes_from_an_index_with_relative_urls_and_is_kept(files: Files, store: Store) -> None:
    seen: list[tuple[str, int, int]] = []
    path = bring(store, index(files), progress=lambda *call: seen.append(call))
    assert path.read_bytes() == DATA
    assert path == store.root / "sha256" / DIGEST[:2] / DIGEST / NAME
    assert seen[-1] == (NAME, len(DATA), len(DATA))
    files.asked.clear()
    assert bring(store, index(files)) == path
    assert files.asked == []


def test_a_json_index_is_read(files: Files, store: Store) -> None:
    document = {"files": [{"filename": NAME, "url": f"/files/{NAME}", "hashes": {"sha256": DIGEST}}]}
    files.content["/simple/demo-pkg/"] = json.dumps(document).encode()
    files.types["/simple/demo-pkg/"] = "application/vnd.pypi.simple.v1+json"
    assert bring(store, index(files)).read_bytes() == DATA


def test_an_index_page_that_is_not_what_it_says_is_a_network_error(files: Files, store: Store) -> None:
    files.content["/simple/demo-pkg/"] = b"<html>please log in</html>"
    files.types["/simple/demo-pkg/"] = "application/vnd.pypi.simple.v1+json"
    with pytest.raises(NetworkError, match="no PEP 691 JSON"):
        bring(store, index(files))


def test_a_find_links_directory_serves_without_any_index(store: Store, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / NAME).write_bytes(DATA)
    for location in (str(tmp_path / "wheels"), (tmp_path / "wheels").as_uri()):
        fresh = Store(tmp_path / hashlib.sha256(location.encode()).hexdigest())
        assert bring(fresh, IndexSettings(find_links=(location,))).read_bytes() == DATA


def test_a_local_index_is_asked_first_and_places_that_do_not_exist_are_skipped(
    files: Files, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "simple" / "demo-pkg"
    folder.mkdir(parents=True)
    (tmp_path / NAME).write_bytes(DATA)
    (folder / "index.html").write_bytes(html_page(f"../../{NAME}"))
    settings = IndexSettings(
        indexes=(files.url + "/simple", "file:///nowhere/simple", (tmp_path / "simple").as_uri()),
        find_links=("/nowhere/wheels",),
    )
    assert bring(store, settings).read_bytes() == DATA
    assert files.asked == []


def test_other_bytes_are_refused_with_both_digests_and_nothing_is_kept(files: Files, store: Store) -> None:
    files.content["/simple/demo-pkg/"] = html_page(f"/files/{NAME}")
    files.content["/files/" + NAME] = DATA[::-1]
    with pytest.raises(HashMismatchError) as caught:
        bring(store, index(files))
    assert DIGEST in caught.value.message
    assert hashlib.sha256(DATA[::-1]).hexdigest() in caught.value.message
    assert caught.value.where == NAME
    assert nothing_kept(store)


@pytest.mark.parametrize("left", [DATA[:9] + b"?" + DATA[10:], DATA[:9], b""])
def test_a_damaged_file_in_the_store_is_told_removed_and_fetched_again(
    files: Files, store: Store, caplog: pytest.LogCaptureFixture, left: bytes
) -> None:
    path = bring(store, index(files))
    path.chmod(0o644)
    path.write_bytes(left)
    files.asked.clear()
    with pytest.raises(HashMismatchError, match="damaged in the store") as caught:
        bring(store, index(files), offline=True)
    assert caught.value.where == str(path)
    assert "without --offline" in caught.value.cure
    assert path.read_bytes() == left, "offline nothing is removed"
    assert bring(store, index(files)).read_bytes() == DATA
    assert len(downloads(files)) == 1
    (said,) = caplog.messages
    assert str(path) in said
    assert "fetched again" in said


def test_an_index_that_lists_another_digest_is_not_downloaded_from(files: Files, store: Store) -> None:
    with pytest.raises(HashMismatchError) as caught:
        bring(store, index(files), sha256=OTHER)
    assert DIGEST in caught.value.message
    assert OTHER in caught.value.message
    assert downloads(files) == []


def test_another_place_is_tried_when_the_first_offers_other_bytes(files: Files, store: Store, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA[::-1])
    settings = IndexSettings(indexes=(files.url + "/simple",), find_links=(str(tmp_path),))
    assert bring(store, settings).read_bytes() == DATA


def test_a_broken_connection_is_taken_up_where_it_ended(files: Files, store: Store) -> None:
    files.cut_after["/files/" + NAME] = [100_000, 50_000]
    assert bring(store, index(files)).read_bytes() == DATA
    assert downloads(files) == ["", "bytes=100000-", "bytes=150000-"]


def test_an_interrupted_download_resumes_in_the_next_run(files: Files, store: Store) -> None:
    part(store).parent.mkdir(parents=True)
    part(store).write_bytes(DATA[:200_000])
    assert bring(store, index(files)).read_bytes() == DATA
    assert downloads(files) == ["bytes=200000-"]


def test_a_host_without_ranges_is_read_from_the_start(files: Files, store: Store) -> None:
    files.ignore_range = True
    part(store).parent.mkdir(parents=True)
    part(store).write_bytes(DATA[:200_000])
    assert bring(store, index(files)).read_bytes() == DATA


def test_the_part_of_another_file_does_not_spoil_the_download(files: Files, store: Store) -> None:
    part(store).parent.mkdir(parents=True)
    part(store).write_bytes(b"x" * 200_000)
    assert bring(store, index(files)).read_bytes() == DATA
    assert downloads(files) == ["bytes=200000-", ""]


def test_a_connection_that_breaks_again_and_again_ends_and_keeps_what_came(files: Files, store: Store) -> None:
    files.cut_after["/files/" + NAME] = [100_000, *[0] * 9]
    with pytest.raises(NetworkError) as caught:
        bring(store, index(files))
    assert NAME in caught.value.where
    assert part(store).read_bytes() == DATA[:100_000]


def test_a_file_of_another_size_is_refused_before_it_is_read(files: Files, store: Store) -> None:
    with pytest.raises(SourceError, match="300000 bytes, pinned are 400000"):
        bring(store, index(files), size=400_000)
    assert nothing_kept(store)


def test_a_truncated_local_file_is_a_source_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA[:1000])
    with pytest.raises(SourceError, match="truncated: 1000 of 300000 bytes"):
        bring(store, IndexSettings(find_links=(str(tmp_path),)))


def test_offline_names_the_file_and_the_command(files: Files, store: Store) -> None:
    with pytest.raises(NetworkError) as caught:
        bring(store, index(files), offline=True)
    assert caught.value.where == NAME
    assert "smwheel fetch" in caught.value.cure
    assert files.asked == []


def test_no_network_is_said_with_the_host(store: Store) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(NetworkError) as caught:
        bring(store, IndexSettings(indexes=(f"http://user:secret@127.0.0.1:{port}/simple",)))
    assert f"127.0.0.1:{port}" in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_file_that_no_place_offers_is_a_source_error(files: Files, store: Store) -> None:
    files.content["/simple/demo-pkg/"] = html_page("/files/demo_pkg-2.0.tar.gz")
    with pytest.raises(SourceError, match="no index"):
        bring(store, index(files))


def test_a_host_that_answers_with_an_error_is_not_taken_for_absence(files: Files, store: Store) -> None:
    files.status["/simple/demo-pkg/"] = 503
    with pytest.raises(NetworkError, match="503"):
        bring(store, index(files))


def test_credentials_of_the_index_serve_its_files_too(files: Files, store: Store) -> None:
    files.authorization = "Basic " + base64.b64encode(b"me:pass").decode()
    files.content["/simple/demo-pkg/"] = html_page(f"{files.url}/files/{NAME}")
    url = files.url.replace("http://", "http://me:pass@") + "/simple"
    assert bring(store, IndexSettings(indexes=(url,))).read_bytes() == DATA
    fresh = Store(store.root / "other")
    with pytest.raises(NetworkError, match="401"):
        bring(fresh, index(files))


def test_credentials_come_from_netrc(
    files: Files, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.authorization = "Basic " + base64.b64encode(b"me:pass").decode()
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password pass\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert bring(store, index(files)).read_bytes() == DATA


CERTIFICATE = Path(__file__).parent.parent / "fixtures/loopback.pem"


def test_a_host_is_trusted_by_its_certificate_or_by_name(store: Store) -> None:
    with Server(CERTIFICATE) as files:
        files.content["/simple/demo-pkg/"] = html_page(f"/files/{NAME}")
        files.content["/files/" + NAME] = DATA
        url = files.url + "/simple"
        with pytest.raises(NetworkError, match="certificate"):
            bring(store, IndexSettings(indexes=(url,)))
        for number, trust in enumerate(({"cert": str(CERTIFICATE)}, {"trusted_hosts": ("127.0.0.1",)})):
            fresh = Store(store.root / str(number))
            assert bring(fresh, IndexSettings(indexes=(url,), **trust)).read_bytes() == DATA  # type: ignore[arg-type]


def test_a_proxy_is_asked_for_everything(files: Files, store: Store) -> None:
    host = "http://index.invalid"
    files.content[f"{host}/simple/demo-pkg/"] = html_page(f"/files/{NAME}")
    files.content[f"{host}/files/{NAME}"] = DATA
    assert bring(store, IndexSettings(indexes=(host + "/simple",), proxy=files.url)).read_bytes() == DATA


def _bring_in_process(root: str, url: str) -> None:
    bring(Store(Path(root)), IndexSettings(indexes=(url + "/simple",)))


def test_processes_that_want_the_same_file_fetch_it_once(files: Files, store: Store) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_bring_in_process, args=(str(store.root), files.url)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(downloads(files)) == 1


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    code = (
        "import os, sys, pathlib; from smwheel.locks import locked\n"
        f"with locked(pathlib.Path({str(lock)!r})): print('held', flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (killed.stdout, killed.returncode) == ("held\n", -9)
    assert lock.exists()
    with locked(lock, timeout=0):
        pass


def test_the_lock_of_a_live_process_is_waited_for_and_its_holder_named(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with locked(lock), pytest.raises(LockedError, match=str(os.getpid())), locked(lock, timeout=0):
        pass


def test_a_digest_or_name_that_is_none_never_becomes_a_path(store: Store) -> None:
    with pytest.raises(SourceError, match="no sha256"):
        store.path("../../etc")
    with pytest.raises(SourceError, match="no plain file name"):
        store.obtain(DIGEST, "../x", 1, lambda part: None)


def test_settings_are_those_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n    https://two.example/simple\n"
        "    file:///three/simple\ncert = /weak.pem\ntrusted-host = one.example\n[download]\ncert = /strong.pem\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path))
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "180")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")  # pip ignores what is empty
    ask = pip_settings.__wrapped__
    assert ask(sys.executable) == IndexSettings(
        indexes=("https://one.example/simple", "https://two.example/simple", "file:///three/simple"),
        find_links=("/a", "/b"),
        cert="/strong.pem",
        trusted_hosts=("one.example",),
        timeout=180.0,
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert ask(sys.executable).indexes == ()


def test_without_pip_nobody_knows_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho No module named pip >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(NetworkError, match="No module named pip"):
        pip_settings(str(tmp_path / "python"))
