"""Git sources against real local repositories: what is fetched, kept, refused and proven."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from smwheel.errors import HashMismatchError, NetworkError, RecipeError, SourceError, UsageError
from smwheel.recipe import ArchiveSource, GitSource
from smwheel.sources import git
from smwheel.sources.archive import fetch_archive
from smwheel.sources.git import fetch_git, known_commit, rewritten
from smwheel.sources.store import Store, file_digest
from smwheel.sources.unpack import unpack

IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip


def run(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        [*command, *arguments], check=True, capture_output=True, text=True, env={**os.environ, **IDENTITY}
    )
    return done.stdout.strip()


def make_repository(folder: Path, files: dict[str, str]) -> str:
    """Make (or go on with) a repository that serves partial clones; return its new commit."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True)
        run(folder, "init", "--quiet")
        run(folder, "config", "uploadpack.allowFilter", "true")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run(folder, "add", "-A")
    run(folder, "commit", "--quiet", "-m", "change")
    return run(folder, "rev-parse", "HEAD")


def source(folder: Path, **values: object) -> GitSource:
    return GitSource.model_validate({"id": "up", "kind": "git", "repository": folder.as_uri(), **values})


def unpacked(archive: Path, target: Path) -> dict[str, str]:
    root = unpack(archive, target).root
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    make_repository(tmp_path / "upstream", {"README": "hello\n", "kernel/a.cu": "a\n", "other/huge": "x" * 1000})
    return tmp_path / "upstream"


def test_a_commit_becomes_the_same_archive_twice(upstream: Path, tmp_path: Path) -> None:
    commit = run(upstream, "rev-parse", "HEAD")
    one = fetch_git(source(upstream, commit=commit), Store(tmp_path / "one"))
    two = fetch_git(source(upstream, commit=commit), Store(tmp_path / "two"))
    assert one.commit == commit
    assert one.archive.read_bytes() == two.archive.read_bytes()
    assert one.archive.name == f"upstream-{commit}.tar.gz"
    assert unpacked(one.archive, tmp_path / "tree")["kernel/a.cu"] == "a\n"


def test_afterwards_no_repository_is_needed(upstream: Path, store: Store) -> None:
    wanted = source(upstream, commit=run(upstream, "rev-parse", "HEAD"))
    with pytest.raises(NetworkError, match="--offline forbids"):
        fetch_git(wanted, store, offline=True)
    first = fetch_git(wanted, store)
    upstream.rename(upstream.with_name("gone"))
    assert fetch_git(wanted, store) == first
    assert fetch_git(wanted, store, offline=True) == first


def test_a_damaged_archive_is_brought_again(upstream: Path, store: Store) -> None:
    wanted = source(upstream, commit=run(upstream, "rev-parse", "HEAD"))
    archive = fetch_git(wanted, store).archive
    whole = archive.read_bytes()
    archive.chmod(0o644)
    archive.write_bytes(whole[:-1])
    with pytest.raises(HashMismatchError, match="damaged"):
        fetch_git(wanted, store, offline=True)
    assert fetch_git(wanted, store).archive.read_bytes() == whole


def test_of_a_directory_nothing_else_is_brought(
    upstream: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []
    original = git._Git.run
    monkeypatch.setattr(git._Git, "run", lambda self, *args, **kw: commands.append(args) or original(self, *args, **kw))
    asked = []
    blob = git._Git.blob
    monkeypatch.setattr(git._Git, "blob", lambda self, name: asked.append(name) or blob(self, name))
    wanted = source(upstream, commit=run(upstream, "rev-parse", "HEAD"), directory="kernel")
    assert unpacked(fetch_git(wanted, store).archive, tmp_path / "tree") == {"a.cu": "a\n"}
    # Two fetches: the names of everything, then the one file; a full fetch would leave nothing for the second.
    assert [args[-1] for args in commands if args[0] == "fetch"] == [wanted.commit, "origin"]
    assert len(asked) == 1


def test_submodules_come_with_their_own_commits(upstream: Path, store: Store, tmp_path: Path) -> None:
    make_repository(tmp_path / "library", {"lib.h": "// one\n"})
    run(upstream, "submodule", "--quiet", "add", "../library", "third/library")
    run(upstream, "commit", "--quiet", "-m", "submodule")
    commit = run(upstream, "rev-parse", "HEAD")
    make_repository(tmp_path / "library", {"lib.h": "// two\n"})
    whole = fetch_git(source(upstream, commit=commit, submodules=True), store)
    assert unpacked(whole.archive, tmp_path / "whole")["third/library/lib.h"] == "// one\n"
    without = fetch_git(source(upstream, commit=commit), store)
    assert "third/library/lib.h" not in unpacked(without.archive, tmp_path / "without")


def test_no_setting_or_attribute_changes_the_files(upstream: Path, store: Store, tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    commit = make_repository(
        upstream, {".gitattributes": "*.bin filter=lfs\nsecret export-ignore\n*.txt eol=crlf\n", "w.bin": pointer,
                   "secret": "s\n", "t.txt": "line\n"}
    )  # fmt: skip
    files = unpacked(fetch_git(source(upstream, commit=commit), store).archive, tmp_path / "tree")
    assert files["w.bin"] == pointer
    assert files["secret"] == "s\n"
    assert (tmp_path / "tree" / "t.txt").read_bytes() == b"line\n"


def test_links_and_modes_are_kept(upstream: Path, store: Store, tmp_path: Path) -> None:
    (upstream / "run.sh").write_text("#!/bin/sh\n")
    (upstream / "run.sh").chmod(0o755)
    (upstream / "link").symlink_to("README")
    commit = make_repository(upstream, {})
    root = unpack(fetch_git(source(upstream, commit=commit), store).archive, tmp_path / "tree").root
    assert os.access(root / "run.sh", os.X_OK)
    assert (root / "link").readlink() == Path("README")


def test_a_tag_is_resolved_once_and_locked(upstream: Path, store: Store) -> None:
    first = run(upstream, "rev-parse", "HEAD")
    run(upstream, "tag", "-a", "v1", "-m", "v1")  # an annotated tag has a hash of its own
    wanted = source(upstream, tag="v1")
    assert known_commit(wanted, store) == ""
    assert fetch_git(wanted, store).commit == first
    assert known_commit(wanted, store) == first
    second = make_repository(upstream, {"README": "changed\n"})
    run(upstream, "tag", "--force", "v1")
    assert fetch_git(wanted, store).commit == first  # what is stored needs no host
    with pytest.raises(SourceError, match=f"v1 was commit {first} and is now {second}: somebody moved it"):
        fetch_git(wanted, store, ask_tag=True)


def test_a_tag_beside_a_commit_must_name_it(upstream: Path, store: Store) -> None:
    first = run(upstream, "rev-parse", "HEAD")
    make_repository(upstream, {"README": "changed\n"})
    run(upstream, "tag", "v1")
    with pytest.raises(SourceError, match="somebody moved it"):
        fetch_git(source(upstream, tag="v1", commit=first), store)


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"commit": "0" * 40}, SourceError, "does not have the commit"),
        ({"tag": "v9"}, SourceError, "has no tag v9"),
        ({}, RecipeError, "neither commit nor tag, and a branch is never taken"),
        ({"commit": "0" * 40, "repository": "file:///nowhere/x.git"}, SourceError, "git failed: .*nowhere"),
        ({"commit": "0" * 40, "repository": "http://127.0.0.1:9/x.git"}, NetworkError, "the host cannot be reached"),
    ],
)
def test_each_failure_has_a_sentence_of_its_own(
    upstream: Path, store: Store, values: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        fetch_git(source(upstream, **values), store)


def test_a_tree_is_no_commit(upstream: Path, store: Store) -> None:
    tree = run(upstream, "rev-parse", "HEAD^{tree}")
    with pytest.raises(SourceError):
        fetch_git(source(upstream, commit=tree), store)


def test_mirrors_are_asked_in_their_order(upstream: Path, store: Store, tmp_path: Path) -> None:
    make_repository(tmp_path / "empty", {"README": "another\n"})
    commit = run(upstream, "rev-parse", "HEAD")
    wanted = source(
        upstream,
        commit=commit,
        repository="http://127.0.0.1:9/x.git",
        mirrors=[(tmp_path / "empty").as_uri(), upstream.as_uri()],
    )
    assert fetch_git(wanted, store).commit == commit
    # The answer of a mirror says more than the silence of a host.
    lost = wanted.model_copy(update={"commit": "1" * 40})
    with pytest.raises(SourceError, match="does not have the commit"):
        fetch_git(lost, store)


def test_prefixes_are_rewritten(upstream: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"https://example.org/us/={upstream.parent.as_uri()}/"
    monkeypatch.setenv(git.MIRROR, f"https://example.org/=http://127.0.0.1:9/ {ours}")
    assert rewritten("https://example.org/them/x") == "http://127.0.0.1:9/them/x"
    assert rewritten("https://example.com/x") == "https://example.com/x"
    commit = run(upstream, "rev-parse", "HEAD")
    wanted = source(upstream, commit=commit, repository="https://example.org/us/upstream")
    assert fetch_git(wanted, store).commit == commit
    monkeypatch.setenv(git.MIRROR, "nonsense")
    with pytest.raises(UsageError, match="'nonsense' is not FROM=TO"):
        rewritten("https://example.org/x")


def test_another_users_repository_is_taken(upstream: Path, store: Store) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a repository to another user")
    commit = run(upstream, "rev-parse", "HEAD")
    subprocess.run(["chown", "-R", "12345", str(upstream)], check=True)
    assert fetch_git(source(upstream, commit=commit), store).commit == commit


def test_more_than_the_bound_is_refused(upstream: Path, store: Store) -> None:
    wanted = source(upstream, commit=run(upstream, "rev-parse", "HEAD"), unpacked=100)
    with pytest.raises(SourceError, match="more than 100 bytes"):
        fetch_git(wanted, store)
    assert known_commit(wanted, store) == wanted.commit
    with pytest.raises(NetworkError):
        fetch_git(wanted, store, offline=True)


def test_an_archive_by_url(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "a.tar.gz"
    file.write_bytes(b"bytes")
    wanted = ArchiveSource(
        id="a", kind="archive", url="file:///nowhere.tar.gz", mirrors=[file.as_uri()], file="a-1.tar.gz", size=5,
        sha256=file_digest(file)
    )  # fmt: skip
    with pytest.raises(NetworkError, match="--offline"):
        fetch_archive(wanted, store, offline=True)
    assert fetch_archive(wanted, store).read_bytes() == b"bytes"
    file.unlink()
    assert fetch_archive(wanted, store).name == "a-1.tar.gz"
    with pytest.raises(SourceError, match="cannot be read"):
        fetch_archive(wanted.model_copy(update={"sha256": "0" * 64}), store)
