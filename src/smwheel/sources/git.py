"""A commit of a git repository, brought into the content-addressed store as one deterministic archive.

What is fetched is the commit alone (depth 1), and of a repository of which only a directory is wanted only that
directory's files. Nothing is checked out: the files are read from git's objects, so no filter (LFS), attribute or
line-end setting of this machine changes them. git itself proves that what came is the commit; which archive in the
store it became is written down in `<store>/git/commits`, and which commit a tag was when it was first asked for in
`<store>/git/tags`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

from smwheel.errors import NetworkError, RecipeError, SmwheelError, SourceError, SystemNeedError, UsageError
from smwheel.locks import locked
from smwheel.recipe import GitSource
from smwheel.sources.store import Store
from smwheel.sources.tarball import Entry, write_tarball

MIRROR = "SMWHEEL_GIT_MIRROR"
"""Environment variable that rewrites the beginnings of URLs: `FROM=TO`, several separated by blanks."""

_SUBMODULE = "160000"
_LINK = "120000"
_EXECUTABLE = "100755"

# What git and the hosts say, in the order in which it is looked for.
_UNREACHABLE = re.compile(
    r"could not resolve host|connection refused|connection timed out|failed to connect|network is unreachable"
    r"|unable to access|could not connect|connection reset|early eof|unable to look up",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"authentication failed|could not read (username|password)|terminal prompts disabled|permission denied"
    r"|returned error: 40[137]|access denied",
    re.IGNORECASE,
)
_NO_COMMIT = re.compile(
    r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object|did not send all necessary objects"
    r"|remote did not send",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Fetched:
    """A stored archive and the commit that it holds."""

    archive: Path
    commit: str


def fetch_git(source: GitSource, store: Store, *, offline: bool = False, ask_tag: bool = False) -> Fetched:
    """Return the stored archive of a source's commit, bringing it when the store lacks it.

    A tag is asked for when the archive is not there, and with `ask_tag` even then.

    Raises:
        RecipeError: the recipe pins neither commit nor tag.
        NetworkError: `offline` and not in the store; or no mirror's host could be reached, or all refused.
        SourceError: the tag is another commit than it was, or no mirror has the commit, tag or repository.
        HashMismatchError: what is stored is damaged, and `offline`.
        SystemNeedError: there is no git.
    """
    require_pin(source)
    commit = known_commit(source, store)
    archive = _stored(source, commit, store) if commit else None
    if archive is not None:
        archive = store.sound(archive.parent.name, mend=not offline)
    if archive is not None and not ask_tag:
        return Fetched(archive, commit)
    if offline:
        if archive is not None:
            return Fetched(archive, commit)
        raise NetworkError(
            "not in the store, and --offline forbids bringing it",
            where=source.title,
            cure="run `smwheel fetch` for the same recipe once with a network, then --offline works",
        )
    if source.tag:
        commit = _ask_tag(source, store, commit)
    return Fetched(_stored(source, commit, store) or _bring(source, commit, store), commit)


def require_pin(source: GitSource) -> None:
    """See that a recipe says what is to be fetched.

    Raises:
        RecipeError: it pins neither commit nor tag.
    """
    if not source.commit and not source.tag:
        raise RecipeError(
            f"{source.id} says neither commit nor tag, and a branch is never taken",
            where=source.repository,
            cure="add the full commit to the recipe",
        )


def known_commit(source: GitSource, store: Store) -> str:
    """Return the recipe's commit, or what its tag was locked to; empty if it was never asked for."""
    if source.commit:
        return source.commit
    return str(_read(_tag_file(source, store)).get("commit", ""))


def rewritten(url: str) -> str:
    """Return a URL as `SMWHEEL_GIT_MIRROR` rewrites it; the longest beginning that fits decides.

    Raises:
        UsageError: the variable is not of the form FROM=TO.
    """
    rules = []
    for word in os.environ.get(MIRROR, "").split():
        old, equals, new = word.partition("=")
        if not (old and equals and new):
            raise UsageError(f"{word!r} is not FROM=TO", where=MIRROR, cure="e.g. https://github.com/=file:///srv/git/")
        rules.append((old, new))
    for old, new in sorted(rules, key=lambda rule: -len(rule[0])):
        if url.startswith(old):
            return new + url[len(old) :]
    return url


def records(source: GitSource, store: Store) -> list[Path]:
    """Return the files that tell the store about a source's commit and tag, as far as they are there."""
    commit = known_commit(source, store)
    paths = [_commit_file(source, commit, store), _tag_file(source, store)]
    return [path for path in paths if path.is_file()]


def stored_digest(source: GitSource, store: Store) -> str:
    """Return the sha256 of the archive that a source's commit became; empty if it is not in the store."""
    archive = _stored(source, known_commit(source, store), store)
    return archive.parent.name if archive else ""


def _commit_file(source: GitSource, commit: str, store: Store) -> Path:
    key = hashlib.sha256(json.dumps([commit, source.directory, source.submodules]).encode()).hexdigest()[:16]
    return store.root / "git" / "commits" / f"{commit}-{key}.json"


def _tag_file(source: GitSource, store: Store) -> Path:
    key = hashlib.sha256(f"{source.repository}\n{source.tag}".encode()).hexdigest()[:32]
    return store.root / "git" / "tags" / f"{key}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value) + "\n", encoding="utf-8")
    temporary.replace(path)


def _stored(source: GitSource, commit: str, store: Store) -> Path | None:
    sha256 = _read(_commit_file(source, commit, store)).get("sha256")
    return store.path(sha256) if sha256 else None


def _ask_tag(source: GitSource, store: Store, known: str) -> str:
    """Return the commit that a tag names now, which must be the one that it named before; lock it."""
    name = f"refs/tags/{source.tag}"

    def ask(git: _Git, url: str) -> str:
        lines = git.run("ls-remote", "--refs", url, name) + git.run("ls-remote", url, f"{name}^{{}}")
        found = {line.split("\t")[1]: line.split("\t")[0] for line in lines.splitlines() if "\t" in line}
        commit = found.get(f"{name}^{{}}") or found.get(name)
        if not commit:
            raise SourceError(f"has no tag {source.tag}", where=_shown(url), cure="correct the tag in the recipe")
        return commit

    with _Git.scratch() as git:
        commit = _first(source, partial(ask, git))
    if known and commit != known:
        raise SourceError(
            f"tag {source.tag} was commit {known} and is now {commit}: somebody moved it; nothing was fetched",
            where=source.repository,
            cure="find out why; to go on with what was locked, put that commit into the recipe instead of the tag",
        )
    _write(_tag_file(source, store), {"repository": source.repository, "tag": source.tag, "commit": commit})
    return commit


def _bring(source: GitSource, commit: str, store: Store) -> Path:
    name = PurePosixPath(urlsplit(source.repository).path).name.removesuffix(".git") or source.id
    with locked(store.root / "partial" / f"git-{commit}.lock"):
        if (archive := _stored(source, commit, store)) is not None:
            return archive
        with tempfile.TemporaryDirectory(dir=store.root / "partial", prefix="git-") as folder:
            packed = Path(folder) / "archive.tar.gz"
            write_tarball(packed, _tree(source, commit, Path(folder)), limit=source.unpacked, where=source.title)
            archive = store.add(packed, f"{name}-{commit}.tar.gz")
        _write(
            _commit_file(source, commit, store),
            {"repository": source.repository, "commit": commit, "sha256": archive.parent.name},
        )
    return archive


def _tree(source: GitSource, commit: str, folder: Path) -> Iterator[Entry]:
    """Yield the files of a commit, its submodules' among them, sorted by path within each repository."""
    with _Git.scratch(folder) as git:
        url = _first(source, lambda url: git.fetch(url, commit, directory=source.directory))
        prefix = f"{source.directory.strip('/')}/" if source.directory else ""
        submodules = git.submodules(commit) if source.submodules else {}
        found = False
        for mode, blob, path in git.files(commit, source.directory):
            found = True
            inner = path.removeprefix(prefix)
            if mode == _SUBMODULE:
                if source.submodules:
                    child = _submodule(source, path, url=submodules.get(path, ""), parent=url, commit=blob)
                    for entry in _tree(child, blob, folder):
                        yield replace(entry, path=f"{inner}/{entry.path}")
            else:
                yield Entry(inner, git.blob(blob), executable=mode == _EXECUTABLE, link=mode == _LINK)
        if not found:
            raise SourceError(f"commit {commit} holds no {source.directory or 'file'}", where=source.repository)


def _submodule(source: GitSource, path: str, *, url: str, parent: str, commit: str) -> GitSource:
    """Return a submodule as a source; a relative URL belongs to where its parent came from."""
    if not url:
        raise SourceError(f"{path} is a submodule that .gitmodules does not name", where=source.repository)
    whole = urljoin(parent.rstrip("/") + "/", url) if url.startswith(("./", "../")) else url
    return GitSource(id=f"{source.id}/{path}", kind="git", repository=whole, commit=commit, submodules=True)


def _first(source: GitSource, attempt: Callable[[str], str]) -> str:
    """Return what the first mirror that can gives; else raise what says most: an answer rather than silence."""
    failures: list[SmwheelError] = []
    for url in (source.repository, *source.mirrors):
        try:
            return attempt(rewritten(url))
        except (NetworkError, SourceError) as error:
            failures.append(error)
    raise next((error for error in failures if isinstance(error, SourceError)), failures[0])


class _Git:
    """git on one bare repository, with settings of its own and no questions asked; a context manager."""

    def __init__(self, folder: Path, *, own: tempfile.TemporaryDirectory[str] | None = None) -> None:
        self._own = own
        self._folder = folder
        self._repository = folder / "repository.git"
        self._reader: subprocess.Popen[bytes] | None = None
        settings = folder / "gitconfig"
        # Another user's local repository is as good as any: the commit proves itself. Command-line settings do not
        # reach the process that serves it.
        users = os.environ.get("GIT_CONFIG_GLOBAL") or str(Path.home() / ".gitconfig")
        settings.write_text(f"[include]\n\tpath = {users}\n[safe]\n\tdirectory = *\n", encoding="utf-8")
        own_variables = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
        self._environment = {name: value for name, value in os.environ.items() if name not in own_variables} | {
            "GIT_CONFIG_GLOBAL": str(settings),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes"),
            "LC_ALL": "C",
        }
        self.run("init", "--quiet", "--bare", str(self._repository))

    @classmethod
    def scratch(cls, parent: Path | None = None) -> _Git:
        """Return git on a new repository that is removed at the end."""
        own = tempfile.TemporaryDirectory(dir=parent, prefix="git-")
        return cls(Path(own.name), own=own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            assert self._reader.stdin is not None  # noqa: S101 - asked for as a pipe
            assert self._reader.stdout is not None  # noqa: S101
            self._reader.stdin.close()
            self._reader.stdout.close()
            self._reader.wait()
        if self._own is not None:
            self._own.cleanup()

    def run(self, *arguments: str, given: str = "") -> str:
        """Return what a git command prints.

        Raises:
            SystemNeedError: there is no git.
            NetworkError, SourceError: it failed; what the error says of the host decides which.
        """
        command = ["git", *(["-C", str(self._repository)] if self._repository.exists() else []), *arguments]
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, check=False, env=self._environment
            )
        except FileNotFoundError as error:
            raise SystemNeedError("there is no git", where="git", cure="apt-get install git") from error
        if done.returncode:
            raise _failure(done.stderr, next((one for one in arguments if "/" in one), "git"))
        return done.stdout

    def fetch(self, url: str, commit: str, *, directory: str) -> str:
        """Bring a commit, of a directory only the files in it; return the URL that it came from."""
        self.run("config", "remote.origin.url", url)
        if not directory:
            self.run("fetch", "--quiet", "--no-tags", "--depth=1", url, commit)
            return self._proven(url, commit)
        # The names first, then all files of the directory in one go: a host that cannot leave files out sends all.
        self.run("config", "remote.origin.promisor", "true")
        self.run("config", "remote.origin.partialclonefilter", "blob:none")
        self.run("fetch", "--quiet", "--no-tags", "--depth=1", "--filter=blob:none", "origin", commit)
        listed = self.run("rev-list", "--objects", "--missing=print", commit, "--", directory)
        missing = [line[1:] for line in listed.splitlines() if line.startswith("?")]
        if missing:
            self.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin",
                     "origin", given="\n".join(missing) + "\n")  # fmt: skip
        return self._proven(url, commit)

    def _proven(self, url: str, commit: str) -> str:
        if self.run("rev-parse", f"{commit}^{{commit}}").strip() != commit:
            raise SourceError(f"{commit} is not the hash of a commit", where=_shown(url), cure="pin the commit itself")
        return url

    def files(self, commit: str, directory: str) -> Iterator[tuple[str, str, str]]:
        """Yield (mode, object, path) of everything in a commit's directory, sorted by path."""
        command = ["ls-tree", "-r", "-z", "--full-tree", commit, *([f"{directory.strip('/')}/"] if directory else [])]
        for line in filter(None, self.run(*command).split("\0")):
            about, _, path = line.partition("\t")
            mode, _, name = about.split(" ")
            yield mode, name, path

    def submodules(self, commit: str) -> dict[str, str]:
        """Return path → URL of the submodules that a commit names."""
        if not any(path == ".gitmodules" for _, _, path in self.files(commit, "")):
            return {}
        listed = self.run("config", "--blob", f"{commit}:.gitmodules", "--null", "--list")
        values = dict(line.split("\n", 1) for line in filter(None, listed.split("\0")) if "\n" in line)
        return {
            path: values.get(f"{key.removesuffix('.path')}.url", "")
            for key, path in values.items()
            if key.startswith("submodule.") and key.endswith(".path")
        }

    def blob(self, name: str) -> bytes:
        """Return a file's bytes, as they are in the repository."""
        if self._reader is None:
            self._reader = subprocess.Popen(
                ["git", "-C", str(self._repository), "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            )
        stdin, stdout = self._reader.stdin, self._reader.stdout
        assert stdin is not None  # noqa: S101 - asked for as pipes
        assert stdout is not None  # noqa: S101
        stdin.write(name.encode() + b"\n")
        stdin.flush()
        head = stdout.readline().split()
        if len(head) != 3 or head[1] != b"blob":
            raise SourceError(f"object {name} did not come with its commit", where="git")
        content = stdout.read(int(head[2]))
        stdout.read(1)
        return content


def _failure(text: str, url: str) -> SmwheelError:
    """Return the error that git's words amount to."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    last = next(
        (line for line in lines if line.startswith(("fatal: ", "error: ", "remote: "))), (lines or ["failed"])[0]
    )
    where = _shown(url)
    if _NO_COMMIT.search(text):
        return SourceError(
            f"does not have the commit ({last})",
            where=where,
            cure="check the commit in the recipe; a commit that was rewritten away must come from a mirror that has it",
        )
    if _REFUSED.search(text):
        return NetworkError(
            f"the host refuses: there is no such repository, or not for us ({last})",
            where=where,
            cure=f"check the address and your credentials for git, or set {MIRROR}",
        )
    if _UNREACHABLE.search(text):
        return NetworkError(
            f"the host cannot be reached ({last})",
            where=where,
            cure=f"check network and proxy, set {MIRROR}, or bring a bundle: smwheel fetch --from-bundle FILE",
        )
    return SourceError(f"git failed: {last}", where=where, cure="check the repository's address in the recipe")


def _shown(url: str) -> str:
    """Return a URL without the password or token that it may hold."""
    return re.sub(r"//[^/@]*@", "//", url)
