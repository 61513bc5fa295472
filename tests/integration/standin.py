"""The stand-in upstream as git repositories, with a recipe and a stack that build it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pyproject_hooks import BuildBackendHookCaller

from smwheel import recipe
from smwheel.arch import Arch, known
from smwheel.build import pep517
from smwheel.governor.policy import LaunchPolicy
from smwheel.pipeline import Options, Prepared, prepare
from smwheel.plan import resolve
from smwheel.progress import Reporter
from smwheel.stack import Stack

FIXTURE = Path(__file__).parents[1] / "fixtures" / "standin-kernel"
CALLED = ("standin-kernel", "1.0")
STACK = Stack(name="standin", summary="", cuda="13.0", torch="2.13.0", recipes={"standin-kernel": "1.0"})

_IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Standin:
    """The repositories `upstream`, `oldlib` and `numalib` below `root`, their commits, and where libnuma lies."""

    root: Path
    commits: dict[str, str]
    numa: Path

    @property
    def git(self) -> str:
        """What the CMake project puts before its third parties' names."""
        return (self.root / "git").as_uri()

    @classmethod
    def at(cls, root: Path) -> Standin:
        """Return what `make` has made below `root` before."""
        commits = {name: _git(root / "git" / name, "rev-parse", "HEAD") for name in ("oldlib", "numalib", "upstream")}
        return cls(root, commits, root / "numa")

    def recipe(
        self, name: str = "recipe", *, changes: dict[str, str] | None = None, called: tuple[str, str] = CALLED
    ) -> recipe.Recipe:
        """Write the recipe, with some of its text changed and under another name and version, and read it."""
        text = (FIXTURE / "recipe" / "recipe.toml").read_text()
        text = text.replace(f'versions."{CALLED[1]}"', f'versions."{called[1]}"')
        text = text.replace(f'name = "{CALLED[0]}"', f'name = "{called[0]}"')
        values = {"GIT": self.git, "NUMA": str(self.numa), **{k.upper(): v for k, v in self.commits.items()}}
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        for old, new in (changes or {}).items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        directory = self.root / name
        shutil.copytree(FIXTURE / "recipe", directory, dirs_exist_ok=True)
        shutil.copy(FIXTURE / "requirements.txt", directory)
        (directory / "recipe.toml").write_text(text)
        return recipe.load(f"{directory}/")

    def prepare(self, found: recipe.Recipe, arch: str, work: Path) -> Prepared:
        """Resolve and prepare a build below `work`."""
        options = Options(work=work / "work", wheelhouse=work / "wheelhouse")
        options.wheelhouse.mkdir(parents=True, exist_ok=True)
        return prepare(resolve(found, STACK, Arch.parse(arch)), options, Reporter())


def make(root: Path, *, version: str = CALLED[1]) -> Standin:
    """Make the repositories, of a package of this version, and a libnuma of our own below `root`."""
    commits = {name: _repository(root / "git" / name, FIXTURE / name, {}) for name in ("oldlib", "numalib")}
    places = {f"@{name.upper()}_COMMIT@": commit for name, commit in commits.items()}
    places[f'version = "{CALLED[1]}"'] = f'version = "{version}"'
    commits["upstream"] = _repository(root / "git" / "upstream", FIXTURE / "upstream", places)
    return Standin(root, commits, _libnuma(root / "numa"))


def _repository(folder: Path, files: Path, places: dict[str, str]) -> str:
    shutil.copytree(files, folder)
    for path in (*folder.rglob("CMakeLists.txt"), *folder.glob("pyproject.toml")):
        text = path.read_text()
        for key, value in places.items():
            text = text.replace(key, value)
        path.write_text(text)
    for command in (["init", "--quiet"], ["add", "-A"], ["commit", "--quiet", "-m", "as it is"]):
        _git(folder, *command)
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **_IDENTITY}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def _libnuma(prefix: Path) -> Path:
    """Make header and library of the one function that is used: the real ones need the network and root."""
    (prefix / "include").mkdir(parents=True)
    (prefix / "lib").mkdir()
    (prefix / "include" / "numa.h").write_text('extern "C" int numa_available(void);\n')
    source = prefix / "numa.c"
    source.write_text("int numa_available(void) { return 0; }\n")
    library = prefix / "lib" / "libnuma.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libnuma.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    (prefix / "lib" / "libnuma.so").symlink_to("libnuma.so.1")
    return prefix


EVERYTHING = LaunchPolicy("every GPU", tuple(arch.sm for arch in known()))
"""Leaves every architecture on nvcc's command lines: what upstream's build compiles."""


def upstreams_way(prepared: Prepared, *, jobs: int) -> subprocess.CompletedProcess[str]:
    """Build the wheel as upstream does: nothing between its build system and the compilers, 32 threads a compiler."""
    site = prepared.site
    log = site.work / "log" / "upstream.log"
    variables = site.variables | {
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "CUDACXX": site.sandbox.inside(site.toolchain.nvcc),
    }
    source = pep517._private_copy(site.tree.path, site.work / "source")
    hooks = BuildBackendHookCaller(
        str(source),
        "scikit_build_core.build",
        runner=pep517._Runner(site, variables, log),
        python_executable=site.sandbox.inside(site.environment.python),
    )
    settings = pep517._settings(site, "scikit_build_core.build") | {"cmake.define.STANDIN_COMPILE_THREADS": "32"}
    settings.pop("build.targets", None)
    code = 0
    try:
        with pep517._exchanging_in(site.work / "tmp"):
            hooks.build_wheel(site.sandbox.inside(site.work), settings)
    except subprocess.CalledProcessError as error:
        code = error.returncode
    return subprocess.CompletedProcess("upstream", code, log.read_text(errors="replace"), "")


def main() -> None:
    """Build below a directory that `make` has filled: `standin.py ROOT WORK upstream|ours`, for a limited process."""
    root, work, way = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    prepared = Standin.at(root).prepare(recipe.load(f"{root}/recipe/"), "120", work)
    if way == "upstream":
        done = upstreams_way(prepared, jobs=8)
        sys.stdout.write(done.stdout)
        sys.exit(done.returncode)
    built = pep517.compile_wheel(prepared, Reporter())
    print(json.dumps(built.counts))


if __name__ == "__main__":
    main()
