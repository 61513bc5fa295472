"""A small package built through the real pipeline: its generator emits shell and gcc units, no GPU code.

Run as a program (`python demo_build.py ROOT`) it builds the demo, so that tests can kill it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.asked import keep_asked
from smwheel.build.compile import build_compiled
from smwheel.build.sandbox import Bind, make_sandbox
from smwheel.environment import BuildEnvironment
from smwheel.pipeline import Options, Prepared, Site, plan_of
from smwheel.plan import resolve
from smwheel.prepare import Tree
from smwheel.progress import Reporter
from smwheel.sources.store import Store
from smwheel.stack import Stack
from smwheel.toolchain import Toolchain
from smwheel.wheelhouse import Entry

RECIPE = """
schema = 1
name = "demo"
summary = "a demo"
license = "MIT"

[versions."1.0"]
sources = []

[[versions."1.0".targets]]
request = ["120"]
code = "120f"
why = "it is a demo"

[versions."1.0".build]
generator = "generate.py"
requirements = "requirements.txt"

[versions."1.0".expect]
no_device_code = ["*.so"]
"""

# Every unit notes its start, then makes its output, then may linger: a kill can land on each side of the output.
GENERATOR = """
import json, sys
request = json.load(open(sys.argv[1]))
work, source = request["work"], request["source"]
if request["action"] == "modules":
    modules, units = [], []
    for name in ("one", "two"):
        ids = []
        for part in ("a", "b"):
            output = f"{work}/{name}_{part}.o"
            script = (f"echo {name}_{part} >> {work}/count; gcc -fPIC -c {source}/{part}.c -o {output}; "
                      f"sleep $(cat {work}/linger)")
            units.append({"id": f"{name}/{part}", "module": name, "family": "demo", "kind": "cxx",
                          "source": f"{part}.c", "command": ["sh", "-c", script], "output": output})
            ids.append(f"{name}/{part}")
        library = f"{work}/{name}.so"
        units.append({"id": f"{name}/so", "module": name, "family": "demo", "kind": "link",
                      "command": ["gcc", "-shared", f"{work}/{name}_a.o", f"{work}/{name}_b.o", "-o", library],
                      "inputs": [f"{work}/{name}_a.o", f"{work}/{name}_b.o"], "output": library})
        modules.append({"name": name, "family": "demo", "library": library, "units": [*ids, f"{name}/so"]})
    response = {"protocol": 1, "modules": modules, "units": units}
else:
    response = {"protocol": 1, "products": [{
        "distribution": "demo-kernels", "pure": False, "summary": "demo", "license": "MIT",
        "files": [{"path": f"demo/{name}.so", "from": path} for name, path in request["built"].items()]
                 + [{"path": "demo/__init__.py", "text": ""}]}]}
json.dump(response, open(sys.argv[2], "w"))
"""


def make_demo(
    root: Path,
    *,
    generator: str = GENERATOR,
    recipe_text: str = RECIPE,
    linger: str = "0",
    modules_from: Path | None = None,
) -> Prepared:
    """Return the demo prepared below `root`; `linger` is how long (seconds) a unit stays after its output is there."""
    tree, recipes, work = root / "tree", root / "recipe", root / "work"
    for directory in (tree, recipes, root / "cuda" / "bin", *(work / name for name in ("home", "tmp", "log"))):
        directory.mkdir(parents=True, exist_ok=True)
    for part in ("a", "b"):
        (tree / f"{part}.c").write_text(f"const char *{part}(void) {{ return __FILE__; }}\n")
    (recipes / "recipe.toml").write_text(recipe_text)
    (recipes / "generate.py").write_text(generator)
    (work / "linger").write_text(linger)
    demo_stack = Stack(name="demo", summary="", cuda="13.0", torch="2.14.1", recipes={"demo": "1.0"})
    resolution = resolve(recipe.load(f"{recipes}/"), demo_stack, Arch.parse("120"), modules_from=modules_from)
    env = Path(sys.prefix)
    binds = [
        Bind("tree", tree),
        Bind("cuda", root / "cuda"),
        Bind("env", env),
        Bind("recipe", recipes),
        Bind("work", work, writable=True),
    ]
    site = Site(
        resolution=resolution,
        options=Options(wheelhouse=root / "wheelhouse"),
        store=Store(root / "store"),
        toolchain=Toolchain(root / "cuda", "13.0.0", "test", root / "cuda/bin/nvcc", (), "t"),
        environment=BuildEnvironment(python=Path(sys.executable), root=env, fingerprint="e"),
        tree=Tree(tree, "t"),
        sandbox=make_sandbox(binds),
        work=work,
        asked=keep_asked(modules_from, work) if modules_from else None,
    )
    return Prepared(plan_of(site), site)


def build(root: Path, **changes: str) -> list[Entry]:
    """Build the demo below `root`."""
    (root / "wheelhouse").mkdir(parents=True, exist_ok=True)
    return build_compiled(make_demo(root, **changes), Reporter())


def counted(root: Path) -> list[str]:
    """Return which units were started so far, in order."""
    path = root / "work" / "count"
    return path.read_text().split() if path.exists() else []


if __name__ == "__main__":
    build(Path(sys.argv[1]), linger=sys.argv[2])
