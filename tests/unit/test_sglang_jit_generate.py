"""The sglang-jit generator: which modules a request chooses, what SGLang's build files become, what is packed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes/sglang-jit"
METADATA = "Name: sglang\nVersion: 0.5.23\nRequires-Dist: apache-tvm-ffi==0.1.11\nRequires-Dist: torch==2.14.1\n"
NINJA = """ninja_required_version = 1.3
cxx = c++
nvcc = /cuda/bin/nvcc
cxxflags = -fPIC '-Ianchors/a b/include'
cudaflags = -Xcompiler -fPIC -DNAME=$$x
ldflags = -shared -lcudart

rule compile_cuda
  depfile = $out.d
  command = $nvcc -MD -MF "$out.d" $cudaflags -c "$in" -o "$out"

build cuda_0.o: compile_cuda cuda.cu
build main_1.o: compile_cxx main.cpp

build k.so: link cuda_0.o main_1.o
"""


@pytest.fixture(scope="module")
def generate() -> Any:
    sys.path.insert(0, str(RECIPE))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(RECIPE))
        for name in [name for name in sys.modules if name.split(".")[0] in ("generate", "standin", "plugin")]:
            del sys.modules[name]


class Site:
    """A request's folders: a source tree with one kernel, a set file, and a work directory."""

    def __init__(self, folder: Path, generate: Any) -> None:
        self.generate = generate
        self.kernels = folder / "source/sglang/kernels/jit"
        for path in ("csrc/k.cuh", "include/a.cuh", *(f"utils/compile/{n}.py" for n in ("spec", "ninja"))):
            self.add(self.kernels / path, path)
        for name in ("toolchain", "paths"):
            self.add(self.kernels / f"utils/compile/{name}.py", name)
        self.add(folder / "source/sglang-0.5.23.dist-info/METADATA", METADATA)
        self.add(folder / "source/sglang-0.5.23.dist-info/licenses/LICENSE", "licence")
        self.set_file = folder / "mine.json"
        self.set_file.write_text(
            json.dumps(
                {
                    "set": "mine",
                    "summary": "a test",
                    "excluded": [{"name": "topk", "reason": "turns on the GPU at hand"}],
                    "specs": [self.spec("k", "64"), self.spec("k", "128"), self.spec("ar", "2") | {"gpus": ["9.0"]}],
                }
            )
        )
        self.request: dict[str, Any] = {
            "protocol": 1,
            "source": str(folder / "source"),
            "work": str(folder / "work"),
            "cuda_home": "/cuda",
            "cuda": "13.0",
            "arch": {"code": "120f", "capability": "12.0", "number": 120, "suffix": "f"},
            "profile": {"modules": ["*"], "extra": []},
            "modules": None,
            "modules_from": str(self.set_file),
        }

    @staticmethod
    def add(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @staticmethod
    def spec(*marker: str) -> dict[str, Any]:
        return {
            "module_args": list(marker),
            "cuda_files": ["<kernels>/csrc/k.cuh"],
            "cuda_wrappers": [["run", f"K<{marker[1]}>::run"]],
            "cuda_cflags": ["-DSGL_CUDA_ARCH=<arch>", "-O3"],
            "include_paths": ["<kernels>/include"],
        }

    def generator(self) -> Any:
        made = self.generate.Generator(self.request)
        made._roots = {"kernels": self.kernels}
        return made

    def built(self, generator: Any) -> dict[str, str]:
        """Return what a build of every suited module leaves: a library and a dependency file each."""
        libraries = {}
        for name in generator._chosen():
            folder = Path(self.request["work"]) / "modules" / name
            link = Path(self.request["work"]) / "anchors/kernels"
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(self.kernels)
            self.add(folder / f"{name}.so", f"library of {name}")
            self.add(
                folder / "cuda_0.o.d",
                f"modules/{name}/cuda_0.o: modules/{name}/cuda.cu \\\n"
                "  anchors/kernels/csrc/k.cuh anchors/kernels/include/a.cuh /usr/include/stdio.h\n",
            )
            libraries[name] = str(folder / f"{name}.so")
        return libraries


@pytest.fixture
def site(tmp_path: Path, generate: Any) -> Site:
    return Site(tmp_path, generate)


def test_a_build_file_of_sglang_is_read(generate: Any) -> None:
    variables, edges = generate.read_ninja(NINJA)
    assert variables["cxxflags"] == ["-fPIC", "-Ianchors/a b/include"]
    assert variables["cudaflags"] == ["-Xcompiler", "-fPIC", "-DNAME=$x"]
    assert edges == [
        ("compile_cuda", "cuda_0.o", ["cuda.cu"]),
        ("compile_cxx", "main_1.o", ["main.cpp"]),
        ("link", "k.so", ["cuda_0.o", "main_1.o"]),
    ]


def test_a_profile_chooses_by_its_sets(site: Site) -> None:
    site.request |= {"modules_from": None, "profile": {"modules": ["*"], "extra": [{"set": "eagle3"}]}}
    names = [name.rsplit("-", 1)[0] for name in site.generator()._chosen()]
    assert "speculative_tree" in names
    assert "gptq_marlin_bf16_t" not in names


def test_a_recorded_set_is_taken_whole(site: Site) -> None:
    names = list(site.generator()._chosen())
    assert [name.rsplit("-", 1)[0] for name in names] == ["k_64", "k_128", "ar_2"]


@pytest.mark.parametrize("text", ["INFO starting\n", "[]", '{"set": "x"}', "directory"])
def test_what_is_no_recorded_set_asks_for_nothing(site: Site, text: str) -> None:
    site.set_file.unlink()
    site.set_file.mkdir() if text == "directory" else site.set_file.write_text(text)
    answer = site.generator().modules()
    assert answer["modules"] == []
    assert "smwheel record" in answer["notes"][0]


def test_a_profile_can_narrow_its_sets(site: Site) -> None:
    site.request["profile"] |= {"modules": ["k_*"], "leave_out": ["k_64-*"]}
    assert [name.rsplit("-", 1)[0] for name in site.generator()._chosen()] == ["k_128"]


def test_patterns_of_the_command_line_choose_from_every_shipped_set(site: Site) -> None:
    site.request |= {"modules_from": None, "modules": ["kvcache_2048_*", "gptq_marlin_b*"]}
    names = [name.rsplit("-", 1)[0] for name in site.generator()._chosen()]
    assert sorted(names) == ["gptq_marlin_bf16_t", "kvcache_2048_2048_128_true"]


def test_the_architecture_is_part_of_the_request_and_the_suffix_of_no_key(site: Site) -> None:
    names = list(site.generator()._chosen())
    fields = next(iter(site.generator()._chosen().values()))
    assert "-DSGL_CUDA_ARCH=1200" in fields["cuda_cflags"]
    site.request["arch"] = {"code": "120a", "capability": "12.0", "number": 120, "suffix": "a"}
    assert list(site.generator()._chosen()) == names
    site.request["arch"] = {"code": "90a", "capability": "9.0", "number": 90, "suffix": "a"}
    assert list(site.generator()._chosen()) != names


def test_the_wheel_holds_plugin_index_and_libraries(site: Site) -> None:
    generator = site.generator()
    generator.request["built"] = site.built(generator)
    (product,) = generator.products()["products"]
    assert product["distribution"] == "sglang-jit-cache-sm120f"
    assert product["requires"] == ["sglang==0.5.23", "apache-tvm-ffi==0.1.11"]
    assert product["entry_points"] == {
        "sglang.srt.plugins": {"sglang-jit-cache-sm120f": "sglang_jit_cache_sm120f:register"}
    }
    texts = {file["path"]: file["text"] for file in product["files"] if "text" in file}
    assert "sglang_jit_cache_sm120f/store.py" in texts
    index = json.loads(texts["sglang_jit_cache_sm120f/store/index.json"])
    assert index["built_for"] == {"sglang": "0.5.23", "apache-tvm-ffi": "0.1.11", "torch": "2.14.1"}
    assert (index["capability"], index["arch"], index["cuda_major"]) == ("12.0", "120f", "13")
    stored = {file["path"] for file in product["files"] if "from" in file}
    assert {f"sglang_jit_cache_sm120f/store/{entry['library']}" for entry in index["modules"].values()} <= stored
    entry = next(iter(index["modules"].values()))
    inputs = {tuple(index["files"][number][:2]) for number in entry["inputs"]}
    assert inputs == {
        ("kernels", "csrc/k.cuh"),
        ("kernels", "include/a.cuh"),
        *(("kernels", f"utils/compile/{name}.py") for name in ("ninja", "paths", "spec", "toolchain")),
    }


def test_a_module_without_a_dependency_file_is_refused(site: Site) -> None:
    generator = site.generator()
    generator.request["built"] = site.built(generator)
    for path in Path(site.request["work"]).rglob("*.d"):
        path.unlink()
    with pytest.raises(SystemExit, match="has no dependency file beside its objects"):
        generator.products()


def test_a_library_that_nothing_asks_for_is_refused(site: Site) -> None:
    generator = site.generator()
    generator.request["built"] = site.built(generator) | {"stranger": str(site.set_file)}
    with pytest.raises(SystemExit, match="no set of the profile asks for stranger"):
        generator.products()


def test_metadata_without_pins_is_refused(site: Site) -> None:
    path = next(Path(site.request["source"]).glob("*.dist-info")) / "METADATA"
    path.write_text("Name: sglang\nVersion: 0.5.23\nRequires-Dist: torch>=2\n")
    with pytest.raises(SystemExit, match="pins no version of apache-tvm-ffi, torch"):
        _ = site.generator()._pins


def test_shipped_sets_are_well_formed(generate: Any) -> None:
    paths = sorted((RECIPE / "sets").glob("*.json"))
    assert [path.stem for path in paths] == ["base", "eagle3", "fp8", "gqa-bf16", "int4-marlin", "mla"]
    for path in paths:
        document = json.loads(path.read_text())
        assert document["sglang"] == "0.5.23"
        for spec in document["specs"]:
            assert spec["why"], path
            assert set(spec.get("gpus", ["12.0"])) <= {"9.0", "12.0"}
            flags = spec["cuda_cflags"]
            assert flags[0] == "-DSGL_CUDA_ARCH=<arch>"
            text = json.dumps(spec)
            assert '"/' not in text, f"{path.name}: a path of one machine in {spec['module_args']}"
