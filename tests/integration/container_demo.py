"""A small recipe of shell units, built through the command line on any backend in seconds; no GPU code.

It takes the name and the version of a recipe that the default stack has, since a stack says the versions, and that
recipe's toolchain, so that no other has to be brought.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from smwheel import recipe, stack
from smwheel.build import engine as engines
from smwheel.build.builderimage import LOCAL_BASE
from smwheel.build.engine import Engine
from smwheel.errors import ContainerError

NAME = "flashinfer"

RECIPE = """
schema = 1
name = "{name}"
summary = "a demo"
license = "MIT"

[versions."{version}"]
[[versions."{version}".sources]]
id = "sdist"
kind = "sdist"
project = "smwheel-container-demo"
file = "smwheel_container_demo-1.0.tar.gz"
size = {size}
sha256 = "{sha256}"

[[versions."{version}".targets]]
request = ["120"]
code = "120f"
why = "it is a demo"

[versions."{version}".toolchain]
components = {components}

[versions."{version}".build]
generator = "generate.py"
requirements = "requirements.txt"

[versions."{version}".expect]
no_device_code = ["*.so"]
"""

GENERATOR = """
import json, sys
request = json.load(open(sys.argv[1]))
work, source = request["work"], request["source"]
UNITS = {units!r}
objects = [f"{{work}}/{{name}}.o" for name in UNITS]
if request["action"] == "modules":
    units = [{{"id": f"one/{{name}}", "module": "one", "family": "demo", "kind": "cxx", "source": "a.c",
               "command": ["sh", "-ec", f"echo {{name}} >>{{work}}/started; " + script
                           + f"; gcc -g -fPIC -Dname_={{name}} -c {{source}}/a.c -o {{work}}/{{name}}.o"],
               "output": f"{{work}}/{{name}}.o"}} for name, script in UNITS.items()]
    units.append({{"id": "one/so", "module": "one", "family": "demo", "kind": "link", "inputs": objects,
                   "command": ["gcc", "-shared", *objects, "-o", f"{{work}}/one.so"], "output": f"{{work}}/one.so"}})
    response = {{"protocol": 1, "units": units, "modules": [
        {{"name": "one", "family": "demo", "library": f"{{work}}/one.so", "units": [unit["id"] for unit in units]}}]}}
else:
    response = {{"protocol": 1, "products": [{{
        "distribution": "container-demo", "pure": False, "summary": "demo", "license": "MIT",
        "files": [{{"path": f"container_demo/{{name}}.so", "from": path}} for name, path in request["built"].items()]
                 + [{{"path": "container_demo/__init__.py", "text": ""}}]}}]}}
json.dump(response, open(sys.argv[2], "w"))
"""

SOURCE = "#define cat(a) a##_where\n#define name(a) cat(a)\nconst char *name(name_)(void) { return __FILE__; }\n"


def make(root: Path, units: dict[str, str]) -> Path:
    """Write the recipe and the source that it names below `root`; `units` is name → shell commands before its gcc."""
    folder, offered = root / "recipe", root / "offered"
    folder.mkdir(parents=True)
    offered.mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo("smwheel_container_demo-1.0/a.c")
        member.size = len(SOURCE)
        archive.addfile(member, io.BytesIO(SOURCE.encode()))
    content = bytearray(buffer.getvalue())
    content[4:8] = bytes(4)  # gzip's time
    (offered / "smwheel_container_demo-1.0.tar.gz").write_bytes(content)
    version = stack.load(None).recipes[NAME]
    text = RECIPE.format(
        name=NAME,
        version=version,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        components=json.dumps(recipe.load(NAME).version(version).toolchain.components),
    )
    (folder / "recipe.toml").write_text(text)
    (folder / "generate.py").write_text(GENERATOR.format(units=units))
    (folder / "requirements.txt").write_text("# nothing\n")
    return folder


def command(root: Path, *arguments: str, wheelhouse: str = "wheelhouse") -> list[str]:
    """Return the command line that builds the demo of `root` with everything it writes below `root`."""
    places = ["--work", str(root / "work"), "--wheelhouse", str(root / wheelhouse)]
    return [*program(), "build", f"{root}/recipe", "--arch", "120", *places, *arguments]


def program() -> list[str]:
    return [sys.executable, "-c", "from smwheel.cli import main; main()"]


def environment(root: Path) -> dict[str, str]:
    return os.environ | {"PIP_FIND_LINKS": str(root / "offered")}


def build(root: Path, *arguments: str, wheelhouse: str = "wheelhouse") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(root, *arguments, wheelhouse=wheelhouse),
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def work_of(root: Path) -> Path:
    """Return the directory that the demo's units work in."""
    (found,) = [path for path in (root / "work").glob(f"{NAME}-*") if not path.name.endswith("-made")]
    return found


def evidence(root: Path, name: str, wheelhouse: str = "wheelhouse") -> dict[str, Any]:
    (path,) = (root / wheelhouse / "evidence").glob(f"*/{name}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def docker() -> Engine:
    """Return docker, with the base image there; without one skip the test, but in CI fail."""
    try:
        found = engines.find("docker")
        found.base(LOCAL_BASE)
    except ContainerError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return found
