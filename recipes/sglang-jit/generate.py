"""Turn sets of kernel requests into compiler commands and a wheel (docs/generator-protocol.md).

SGLang's own code makes the commands: each request of a set is given to its `ninja.generate`, and the text that
SGLang would hand to ninja is read back as units. Sources and headers are named through links below the work
directory, so that no path of this machine gets into a library.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import Any

import standin
from plugin import identity

HERE = Path(__file__).resolve().parent
ANCHORS = "anchors"  # the links, below the work directory
PINNED = ("sglang", "apache-tvm-ffi", "torch")
# Temporary names beside the object and no symbol table: two runs give the same bytes.
REPRODUCIBLE = {"compile_cuda": ["-objtemp"], "compile_cxx": [], "link": ["-s", "-Wl,--build-id=none"]}
SET_KEYS = {"set", "summary", "specs"}
NO_SET = "give a set that `smwheel record --recipe sglang-jit` wrote: SGLang's log names no requests"
KINDS = {"compile_cuda": "cuda", "compile_cxx": "cxx", "link": "link"}


class Generator:
    """The answers to one request file."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.source = Path(request["source"])
        self.work = Path(request["work"])
        self.arch = request["arch"]

    def modules(self) -> dict[str, Any]:
        """Return every module of the chosen sets, its units, and what is left out and why."""
        self._link()
        modules, units, excluded = [], [], []
        for name, spec in self._chosen().items():
            reason = self._unsuited(spec)
            if reason:
                excluded.append({"name": name, "reason": reason})
                continue
            made = self._units(name, spec)
            units += made
            modules.append(
                {
                    "name": name,
                    "family": spec["module_args"][0],
                    "library": made[-1]["output"],
                    "units": [unit["id"] for unit in made],
                }
            )
        names = [module["name"] for module in modules] + [entry["name"] for entry in excluded]
        missing = [p for p in self.request["modules"] or [] if not fnmatch.filter(names, p)]
        for document in self._sets:
            excluded += [entry for entry in document.get("excluded", []) if entry not in excluded]
        return {
            "protocol": 1,
            "modules": modules,
            "units": units,
            "excluded": excluded,
            "missing": missing,
            "notes": [f"{document['set']}: {document['summary']}" for document in self._sets] or [NO_SET],
        }

    def products(self) -> dict[str, Any]:
        """Return the one wheel: plugin, index and libraries."""
        distribution = f"sglang-jit-cache-sm{self.arch['code']}"
        package = distribution.replace("-", "_")
        index, libraries = self._index(distribution)
        files: list[dict[str, str]] = [
            {"path": f"{package}/{path.name}", "text": path.read_text(encoding="utf-8")}
            for path in sorted((HERE / "plugin").glob("*.py"))
        ]
        files.append({"path": f"{package}/store/index.json", "text": json.dumps(index, indent=1) + "\n"})
        files += [{"path": f"{package}/store/{stored}", "from": built} for stored, built in libraries.items()]
        files += [
            {"path": path.name, "from": str(path), "dist_info": "licenses"}
            for path in sorted(self._dist_info.glob("licenses/*"))
        ]
        pins = self._pins
        return {
            "protocol": 1,
            "products": [
                {
                    "distribution": distribution,
                    "pure": False,
                    "summary": f"SGLang {pins['sglang']}'s own kernels, compiled for sm_{self.arch['code']}",
                    "license": "Apache-2.0",
                    "requires_python": ">=3.10",
                    "requires": [f"{name}=={pins[name]}" for name in ("sglang", "apache-tvm-ffi")],
                    "entry_points": {"sglang.srt.plugins": {distribution: f"{package}:register"}},
                    "files": files,
                }
            ],
        }

    # What to build.

    @cached_property
    def _sets(self) -> list[dict[str, Any]]:
        """The set files asked for: a recorded one, else the profile's, else (for patterns) all that are shipped."""
        if recorded := self.request.get("modules_from"):
            return read_recorded(Path(recorded))
        names = [entry["set"] for entry in self.request["profile"].get("extra", [])]
        if self.request["modules"] is not None or not names:
            names = [path.stem for path in sorted((HERE / "sets").glob("*.json"))]
        paths = [HERE / "sets" / f"{name}.json" for name in names]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def _chosen(self) -> dict[str, dict[str, Any]]:
        """Return module name → request, of all sets, in the order of the sets and each once."""
        patterns = self.request["modules"] or self.request["profile"]["modules"]
        leave_out = self.request["profile"].get("leave_out", [])
        found: dict[str, dict[str, Any]] = {}
        for document in self._sets:
            for spec in document["specs"]:
                fields = self._fields(spec)
                name = module_name(fields, identity.key(fields, self.arch["capability"]))
                if any(fnmatch.fnmatch(name, p) for p in patterns) and not any(
                    fnmatch.fnmatch(name, p) for p in leave_out
                ):
                    found[name] = fields | {"gpus": spec.get("gpus", [])}
        return found

    def _fields(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a request of a set file with its defaults filled in, for this architecture."""
        defaults: dict[str, Any] = {name: [] for name in (*identity.FIELDS, "include_paths")}
        fields = defaults | {"header_only": True} | spec
        flag = f"-DSGL_CUDA_ARCH={self.arch['number']}0"
        fields["cuda_cflags"] = [flag if f == "-DSGL_CUDA_ARCH=<arch>" else f for f in fields["cuda_cflags"]]
        return fields

    def _unsuited(self, spec: dict[str, Any]) -> str:
        gpus = spec["gpus"]
        if gpus and self.arch["capability"] not in gpus:
            return f"SGLang asks for it on GPUs of compute capability {', '.join(gpus)} only"
        return ""

    # How to build it.

    @cached_property
    def _machinery(self) -> Any:
        return standin.machinery(
            self.source,
            capability=self.arch["capability"],
            suffix=self.arch["suffix"],
            cuda=self.request["cuda"],
            cuda_home=self.request["cuda_home"],
        )

    @cached_property
    def _roots(self) -> dict[str, Path]:
        """Where the sources lie that a library is verified against: root name → directory."""
        roots = {"kernels": (self.source / "sglang/kernels/jit").resolve()}
        for name in ("tvm_ffi", "flashinfer"):
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                raise SystemExit(f"{name} is not in the build environment: its headers are needed")
            roots[name] = Path(spec.origin).resolve().parent
        return roots

    def _link(self) -> None:
        """Make the links that commands name sources through."""
        folder = self.work / ANCHORS
        folder.mkdir(parents=True, exist_ok=True)
        for name, root in self._roots.items():
            link = folder / name
            if not link.is_symlink() or link.readlink() != root:
                link.unlink(missing_ok=True)
                link.symlink_to(root)

    def _units(self, name: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
        """Write a module's generated sources and return its units, the link last."""
        build = self._machinery
        toolkit = {"toolkit": Path(self.request["cuda_home"])}
        absolute = {k: identity.resolved(v, self._roots | toolkit) for k, v in spec.items() if k != "gpus"}
        asked = build.BuildSpec(**{k: absolute[k] for k in build.BuildSpec.__struct_fields__})
        folder = self.work / "modules" / name
        folder.mkdir(parents=True, exist_ok=True)
        for unit in asked.translation_units():
            if unit.source is not None:
                (folder / unit.filename).write_text(self._anchored(unit.source), encoding="utf-8")
        ninja = importlib.import_module("sglang.kernels.jit.utils.compile.ninja")
        variables, edges = read_ninja(self._anchored(ninja.generate(asked)))
        return [self._unit(name, spec, variables, edge) for edge in edges]

    def _unit(
        self, name: str, spec: dict[str, Any], variables: dict[str, list[str]], edge: tuple[str, str, list[str]]
    ) -> dict[str, Any]:
        rule, output, inputs = edge
        own = f"modules/{name}"
        out = f"{own}/{f'{name}.so' if rule == 'link' else output}"
        if rule == "link":
            objects = [f"{own}/{item}" for item in inputs]
            command = [*variables["cxx"], *objects, *variables["ldflags"], *REPRODUCIBLE[rule], "-o", out]
        else:
            generated = (self.work / own / inputs[0]).is_file()
            source = f"{own}/{inputs[0]}" if generated else inputs[0]
            compiler, flags = ("nvcc", "cudaflags") if rule == "compile_cuda" else ("cxx", "cxxflags")
            command = [
                *variables[compiler],
                *("-MD", "-MF", f"{out}.d"),
                *variables[flags],
                # The generated source includes the others by their path below the work directory.
                "-I.",
                *REPRODUCIBLE[rule],
                *("-c", source, "-o", out),
            ]
        return {
            "id": out,
            "module": name,
            "family": spec["module_args"][0],
            "kind": KINDS[rule],
            "source": (spec["cuda_files"] or spec["cpp_files"] or inputs)[0] if rule != "link" else output,
            "command": command,
            "inputs": [str(self.work / own / item) for item in inputs] if rule == "link" else [],
            "output": str(self.work / out),
        }

    def _anchored(self, text: str) -> str:
        """Replace the directories of sources in `text` by the links to them."""
        for name, root in sorted(self._roots.items(), key=lambda item: -len(str(item[1]))):
            text = text.replace(str(root), f"{ANCHORS}/{name}")
        return text

    # What goes into the wheel.

    @cached_property
    def _dist_info(self) -> Path:
        return next(self.source.glob("sglang-*.dist-info"))

    @cached_property
    def _pins(self) -> dict[str, str]:
        """The versions that SGLang's own metadata pins: what it runs with."""
        metadata = HeaderParser().parsestr((self._dist_info / "METADATA").read_text(encoding="utf-8"))
        pins = {"sglang": str(metadata["Version"])}
        for requirement in metadata.get_all("Requires-Dist", []):
            if match := re.fullmatch(r"([\w.-]+)\s*==\s*([\w.]+)", requirement.strip()):
                pins[match[1].lower()] = match[2]
        absent = [name for name in PINNED if name not in pins]
        if absent:
            raise SystemExit(f"{self._dist_info.name} pins no version of {', '.join(absent)}")
        return {name: pins[name] for name in PINNED}

    def _index(self, distribution: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the store's index, and stored path → built library."""
        built: dict[str, str] = self.request["built"]
        files: dict[tuple[str, str], int] = {}
        entries: dict[str, Any] = {}
        libraries: dict[str, str] = {}
        for name, spec in self._chosen().items():
            if name not in built:
                continue
            key = identity.key(spec, self.arch["capability"])
            stored = f"{key}/{name}.so"
            libraries[stored] = built[name]
            inputs = [files.setdefault(item, len(files)) for item in self._inputs(name)]
            entries[key] = {
                "name": name,
                "library": stored,
                "sha256": identity.digest(Path(built[name])),
                "inputs": sorted(inputs),
                "request": {k: v for k, v in spec.items() if k != "gpus" and v not in ([], True)},
            }
        unknown = sorted(set(built) - {entry["name"] for entry in entries.values()})
        if unknown:
            raise SystemExit(f"no set of the profile asks for {', '.join(unknown)}")
        index = {
            "format": 1,
            "distribution": distribution,
            "arch": self.arch["code"],
            "capability": self.arch["capability"],
            "cuda_major": self.request["cuda"].split(".")[0],
            "built_for": self._pins,
            "modules": dict(sorted(entries.items())),
            "files": [[root, path, identity.digest(self._roots[root] / path)] for root, path in files],
        }
        return index, libraries

    def _inputs(self, name: str) -> list[tuple[str, str]]:
        """Return the sources and headers a module was compiled from, by root: what the compiler says it read."""
        found = {("kernels", f"{identity.MACHINERY_DIR}/{file}") for file in identity.MACHINERY}
        depfiles = sorted((self.work / "modules" / name).glob("*.o.d"))
        if not depfiles:
            raise SystemExit(f"{name} has no dependency file beside its objects: build it again")
        for depfile in depfiles:
            for path in read_depfile(depfile.read_text(encoding="utf-8")):
                real = (self.work / path).resolve()
                if anchor := identity.anchored(real, self._roots):
                    found.add(anchor)
        return sorted(found)


def read_recorded(path: Path) -> list[dict[str, Any]]:
    """Return the set in a file that `smwheel record` wrote; none if it is something else, such as a server's log."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, IsADirectoryError):
        return []
    return [document] if isinstance(document, dict) and document.keys() >= SET_KEYS else []


def module_name(spec: dict[str, Any], key: str) -> str:
    """Return a module's name for people and files: its marker arguments, and enough of its key to be unique."""
    marker = re.sub(r"[^\w.-]+", "_", "_".join(spec["module_args"]))[:120]
    return f"{marker}-{key[:6]}"


def read_ninja(text: str) -> tuple[dict[str, list[str]], list[tuple[str, str, list[str]]]]:
    """Return the variables (as words) and the (rule, output, inputs) of the build file that SGLang writes."""
    variables: dict[str, list[str]] = {}
    edges = []
    for line in text.splitlines():
        if match := re.fullmatch(r"(cxx|nvcc|cxxflags|cudaflags|ldflags) = (.*)", line):
            variables[match[1]] = shlex.split(match[2].replace("$$", "$"))
        elif match := re.fullmatch(r"build (.+?): (compile_cuda|compile_cxx|link) (.+)", line):
            edges.append((match[2], match[1], match[3].split()))
    return variables, edges


def read_depfile(text: str) -> list[str]:
    """Return the prerequisites that a make-style dependency file lists (paths without spaces)."""
    return text.replace("\\\n", " ").split(":", 1)[1].split()


def main(request_path: str, response_path: str) -> None:
    """Answer one request file; the response appears whole or not at all."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    generator = Generator(request)
    actions = {"modules": generator.modules, "products": generator.products}
    if request["protocol"] != 1 or request["action"] not in actions:
        raise SystemExit(f"protocol {request['protocol']}, action {request['action']!r}: not known here")
    temporary = Path(f"{response_path}.{os.getpid()}")
    temporary.write_text(json.dumps(actions[request["action"]](), indent=1), encoding="utf-8")
    temporary.replace(response_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
