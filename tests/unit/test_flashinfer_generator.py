"""FlashInfer's generator without FlashInfer: parsing, selection, wheels, and the stand-in for torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "flashinfer"
sys.path.insert(0, str(RECIPE))

from generator import catalogue, ninja, package, products, selection, times, units  # noqa: E402
from generator.request import Arch, GeneratorError, Request  # noqa: E402

VERSIONS = tomllib.loads((RECIPE / "recipe.toml").read_text())["versions"]

NINJA = """ninja_required_version = 1.3
cuda_home = /cuda
nvcc = $cuda_home/bin/nvcc
launcher =
flags = -O3 $
    -DNAME=\\"a b\\"

rule compile
  command = $launcher $nvcc $flags $more -c $in -o ${out}
  depfile = $out.d

rule link
  command = c++ $in -o $out

build /w/cached_ops/m/a.o: compile /s/a.cu
build /w/cached_ops/m/b.o: compile /s/b.cu | /s/b.cubin
  more = -DB

build /w/cached_ops/m/m.so: link /w/cached_ops/m/a.o /w/cached_ops/m/b.o
default /w/cached_ops/m/m.so
"""


def request(tmp_path: Path, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "protocol": 1,
        "action": "modules",
        "version": "0.7.2",
        "source": str(tmp_path / "source"),
        "work": str(tmp_path / "work"),
        "cuda_home": "/cuda",
        "cuda": "13.0",
        "arch": {"code": "120f", "capability": "12.0", "dotted": "12.0f", "number": 120, "suffix": "f"},
        "options": {"layout": "provider"},
    }
    path = tmp_path / "request.json"
    path.write_text(json.dumps(values | changes))
    return Request.read(path)


class TestNinja:
    def test_reads_commands_as_ninja_would_run_them(self, tmp_path: Path) -> None:
        file = tmp_path / "build.ninja"
        file.write_text(NINJA)
        first, second, last = ninja.read(file)
        assert first.command == [
            "/cuda/bin/nvcc",
            "-O3",
            '-DNAME="a',
            'b"',
            "-c",
            "/s/a.cu",
            "-o",
            "/w/cached_ops/m/a.o",
        ]
        assert "-DB" in second.command
        assert second.inputs == ["/s/b.cu"]
        assert last.rule == "link"
        assert last.inputs == [first.output, second.output]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("subninja other.ninja", "no line that FlashInfer writes"),
            ("build a: unknown b", "not defined"),
            ("rule r\n  command = cp $in $out && touch $out\nbuild a: r b", "needs a shell"),
        ],
    )
    def test_refuses_what_it_does_not_know(self, tmp_path: Path, line: str, message: str) -> None:
        file = tmp_path / "build.ninja"
        file.write_text(line + "\n")
        with pytest.raises(GeneratorError, match=message):
            ninja.read(file)


class TestRequest:
    def test_refuses_another_protocol(self, tmp_path: Path) -> None:
        with pytest.raises(GeneratorError, match="protocol 2"):
            request(tmp_path, protocol=2)

    def test_refuses_a_path_that_a_ninja_file_cannot_hold(self, tmp_path: Path) -> None:
        with pytest.raises(GeneratorError, match="no ninja file for a path"):
            request(tmp_path, work="/a b")

    def test_names_the_missing_key(self, tmp_path: Path) -> None:
        path = tmp_path / "request.json"
        path.write_text('{"protocol": 1, "arch": {}}')
        with pytest.raises(GeneratorError, match="key 'code' is missing"):
            Request.read(path)


def spec(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, sources=[])


DEFAULT = {name: spec(name) for name in ("norm", "rope", "topk", "gemm_sm90", "nvshmem")}


class TestSelection:
    def test_a_pattern_finds_and_a_wrong_one_is_missing(self, tmp_path: Path) -> None:
        chosen = selection.select(request(tmp_path, modules=["no*", "x*", "nope"]), DEFAULT)
        assert list(chosen.specs) == ["norm"]
        assert chosen.missing == ["x*", "nope"]

    def test_profiles_include_each_other_and_add_by_architecture(self, tmp_path: Path) -> None:
        profiles = {
            "core": {"modules": ["norm"], "extra": [{"arch": ["120f"], "modules": ["rope"]}]},
            "moe": {"modules": ["@core", "t*"], "extra": [{"arch": ["90"], "modules": ["gemm_sm90"]}]},
        }
        chosen = selection.select(request(tmp_path, profiles=profiles, profile=profiles["moe"]), DEFAULT)
        assert list(chosen.specs) == ["norm", "rope", "topk"]
        with pytest.raises(GeneratorError, match="no profile 'cor'"):
            selection.select(request(tmp_path, profiles=profiles, profile={"modules": ["@cor"]}), DEFAULT)

    def test_what_is_excluded_is_named_with_its_reason(self, tmp_path: Path) -> None:
        asked = request(
            tmp_path,
            exclusions=[{"modules": ["*_sm90"], "reason": "for sm_90a", "unless": ["90"]}],
            options={"needs": [{"module": "nvshmem", "import": "no.such.package", "reason": "not installed"}]},
        )
        chosen = selection.select(asked, DEFAULT)
        assert chosen.excluded == {"gemm_sm90": "for sm_90a", "nvshmem": "not installed"}
        assert list(chosen.specs) == ["norm", "rope", "topk"]

    def test_an_exclusion_spares_the_architecture_that_it_serves(self, tmp_path: Path) -> None:
        hopper = {"code": "90a", "capability": "9.0", "dotted": "9.0a", "number": 90, "suffix": "a"}
        rule = {"modules": ["*_sm90"], "reason": "for sm_90a", "unless": ["90"]}
        chosen = selection.select(request(tmp_path, arch=hopper, exclusions=[rule]), DEFAULT)
        assert "gemm_sm90" in chosen.specs

    def test_a_profile_leaves_out(self, tmp_path: Path) -> None:
        profile = {"modules": ["*"], "leave_out": ["top*", "gemm*", "nv*"]}
        assert list(selection.select(request(tmp_path, profile=profile), DEFAULT).specs) == ["norm", "rope"]

    def test_names_come_from_a_log(self, tmp_path: Path) -> None:
        log = tmp_path / "server.log"
        log.write_text(
            "flashinfer.jit: Building JIT module norm; this can take several minutes on first use.\n"
            "ninja: Entering directory `/root/.cache/flashinfer/0.7.2/120f/cached_ops/rope'\n"
            "[1/2] c++ /root/.cache/flashinfer/0.7.2/120f/cached_ops/rope/csrc_rope.o -o cached_ops/tmp/x\n"
        )
        assert selection.names_in(log) == ["norm", "rope"]
        chosen = selection.select(request(tmp_path, modules_from=str(log)), DEFAULT)
        assert list(chosen.specs) == ["norm", "rope"]

    def test_names_come_from_a_jit_directory(self, tmp_path: Path) -> None:
        for name in ("norm", "rope", "tmp", "other"):
            (tmp_path / "ops" / name).mkdir(parents=True)
        (tmp_path / "ops" / "norm" / "build.ninja").touch()
        (tmp_path / "ops" / "rope" / "rope.so").touch()
        assert selection.names_in(tmp_path / "ops") == ["norm", "rope"]
        assert selection.names_in(tmp_path / "ops" / "tmp") == []
        nothing = selection.select(request(tmp_path, modules_from=str(tmp_path / "ops" / "tmp")), DEFAULT)
        assert (nothing.specs, nothing.missing) == ({}, [])


class TestByName:
    @pytest.fixture(autouse=True)
    def upstream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module: Any = ModuleType("upstream")

        def generate(backend: str, dtype_q: str, head_dim: int, use_swa: bool) -> SimpleNamespace:
            if head_dim > 256:
                raise ValueError(head_dim)
            return spec(f"decode_q_{dtype_q[:1]}16_head_dim_{head_dim}_swa_{use_swa}_{backend}")

        module.generate = generate
        module.filename_safe_dtype_map = {"float16": "f16"}
        monkeypatch.setattr(package, "function", lambda reference: getattr(module, reference.partition(":")[2]))

    def maker(self, tmp_path: Path, **more: Any) -> catalogue.ByName:
        rule = {
            "name": "decode_q_{dtype_q}_head_dim_{head_dim}_swa_{use_swa}_fa2",
            "call": "upstream:generate",
            "with": {"backend": "fa2"} | more,
        }
        return catalogue.ByName(request(tmp_path, options={"by_name": [rule]}))

    def test_a_name_tells_its_arguments(self, tmp_path: Path) -> None:
        made = self.maker(tmp_path).make("decode_q_f16_head_dim_128_swa_False_fa2")
        assert made is not None
        assert made.name == "decode_q_f16_head_dim_128_swa_False_fa2"

    @pytest.mark.parametrize(
        "name",
        [
            "decode_q_f16_head_dim_512_swa_False_fa2",  # upstream refuses it
            "decode_q_f64_head_dim_128_swa_False_fa2",  # no such data type
            "decode_q_f16_head_dim_128_swa_false_fa2",  # upstream would write False
            "norm",
        ],
    )
    def test_a_name_that_upstream_does_not_make_is_refused(self, tmp_path: Path, name: str) -> None:
        assert self.maker(tmp_path).make(name) is None

    def test_a_rule_with_an_argument_that_upstream_lacks_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(GeneratorError, match="no argument colour"):
            self.maker(tmp_path, colour="red").make("decode_q_f16_head_dim_128_swa_False_fa2")


class TestUnits:
    def describe(self, tmp_path: Path, text: str, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        asked = request(tmp_path, options=options)
        file = asked.work / "cached_ops" / "m" / "build.ninja"
        file.parent.mkdir(parents=True)
        replaced = text.replace("/w/", f"{asked.work}/").replace("/s/", f"{asked.source}/csrc/")
        made = SimpleNamespace(write_ninja=lambda: file.write_text(replaced))
        return units.describe(asked, "m", made)

    def test_units_are_named_without_absolute_paths(self, tmp_path: Path) -> None:
        module, made = self.describe(
            tmp_path,
            NINJA.replace("rule compile", "rule cuda_compile").replace(": compile", ": cuda_compile"),
            families=[["m", "family"]],
        )
        assert [unit["id"] for unit in made] == ["m/a.o", "m/b.o", "m/m.so"] == module["units"]
        assert [unit["kind"] for unit in made] == ["cuda", "cuda", "link"]
        assert made[0]["source"] == "csrc/a.cu"
        assert made[2]["inputs"] == [made[0]["output"], made[1]["output"]]
        assert module["library"] == made[2]["output"]
        assert module["family"] == made[0]["family"] == "family"

    def test_a_link_of_device_code_gets_the_architecture_that_upstream_forgets(self, tmp_path: Path) -> None:
        link = "rule nvcc_link\n  command = nvcc -shared $flags $in -o $out\n"
        build = "build /w/cached_ops/m/m.so: nvcc_link /s/a.o\n"
        _, made = self.describe(tmp_path, link + build)
        assert made[0]["kind"] == "devicelink"
        assert made[0]["command"][:3] == ["nvcc", "-gencode=arch=compute_120f,code=sm_120f", "-shared"]

    def test_a_link_with_an_architecture_is_left_alone(self, tmp_path: Path) -> None:
        own = "flags = -gencode=arch=compute_90a,code=sm_90a\n"
        link = "rule nvcc_link\n  command = nvcc -shared $flags $in -o $out\n"
        _, made = self.describe(tmp_path, own + link + "build /w/cached_ops/m/m.so: nvcc_link /s/a.o\n")
        assert made[0]["command"][:2] == ["nvcc", "-shared"]

    def test_the_longest_prefix_names_the_family(self) -> None:
        rules = [["batch_prefill_", "prefill"], ["batch_prefill_with_sink_", "sink"]]
        assert units.family("batch_prefill_with_sink_f16", rules) == "sink"
        assert units.family("norm", rules) == "norm"


def test_a_source_written_again_with_the_same_content_keeps_its_time(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("one")
    os.utime(source, ns=(10**18, 10**18))
    times.keep(tmp_path, [str(source), ""])
    source.write_text("one")
    times.keep(tmp_path, [str(source)])
    assert source.stat().st_mtime_ns == 10**18
    source.write_text("two")
    times.keep(tmp_path, [str(source)])
    assert source.stat().st_mtime_ns != 10**18


class TestProducts:
    LABEL = "0.7.2+cu130.sm120f.core"

    def make(self, tmp_path: Path, **changes: Any) -> list[dict[str, Any]]:
        library = tmp_path / "norm.so"
        library.write_bytes(b"ELF")
        values: dict[str, Any] = {"action": "products", "label": self.LABEL, "built": {"norm": str(library)}}
        made: list[dict[str, Any]] = products.products(request(tmp_path, **(values | changes)))["products"]
        return made

    def install(self, tmp_path: Path, made: list[dict[str, Any]], more: str = "") -> Path:
        site = tmp_path / "site"
        for product in made:
            for file in product["files"]:
                if "dist_info" not in file:
                    path = site / file["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(file["text"].encode() if "text" in file else Path(file["from"]).read_bytes())
            info = site / f"{product['distribution'].replace('-', '_')}-1.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {product['distribution']}\nVersion: 1\n")
            points = [
                f"{key} = {value}\n" for group in product["entry_points"].values() for key, value in group.items()
            ]
            if points:
                (info / "entry_points.txt").write_text("[flashinfer.jit_cache.providers]\n" + "".join(points) + more)
        return site

    def run(self, site: Path, code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", "-c", code],
            env={"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip() + done.stderr.strip()

    def test_the_shim_finds_the_provider(self, tmp_path: Path) -> None:
        shim, provider = self.make(tmp_path)
        assert shim["pure"]
        assert not provider["pure"]
        assert provider["distribution"] == "flashinfer-jit-cache-sm120f"
        assert provider["requires"] == [f"flashinfer-jit-cache=={self.LABEL}"]
        site = self.install(tmp_path, [shim, provider])
        found = self.run(
            site,
            "import flashinfer_jit_cache as f; p, = f.get_jit_cache_providers(); print(f.__version__, p.version, "
            "p.provider_id, p.distribution, *p.cuda_architectures, *p.modules, "
            "(p.jit_cache_dir / 'norm/norm.so').exists())",
        )
        assert found == f"{self.LABEL} {self.LABEL} sm120f flashinfer-jit-cache-sm120f sm120f norm True"

    @pytest.mark.parametrize(
        "broken", ["other = no_such_module:provider", "other = json:dumps", "other = builtins:dict"]
    )
    def test_a_broken_provider_is_left_out_and_the_rest_is_found(self, tmp_path: Path, broken: str) -> None:
        site = self.install(tmp_path, self.make(tmp_path), broken + "\n")
        found = self.run(
            site, "import flashinfer_jit_cache as f; print(*(p.provider_id for p in f.get_jit_cache_providers()))"
        )
        assert found.startswith("sm120f")
        assert "is left out" in found

    def test_the_single_layout_holds_the_libraries_itself(self, tmp_path: Path) -> None:
        (single,) = self.make(tmp_path, version="0.6.4", label="0.6.4+x", options={"layout": "single"})
        site = self.install(tmp_path, [single])
        found = self.run(site, "import flashinfer_jit_cache as f; print(f.__version__, f.get_jit_cache_dir())")
        assert found == f"0.6.4+x {site}/flashinfer_jit_cache/jit_cache"
        assert (site / "flashinfer_jit_cache/jit_cache/norm/norm.so").exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"label": "0.7.2"}, r"0\.7\.2\+<label>"),
            ({"label": "0.7.20+x"}, r"0\.7\.2\+<label>"),
            ({"built": {}}, "nothing was built"),
            ({"built": {"norm": "/no/norm.so"}}, "/no/norm.so"),
            ({"options": {"layout": "flat"}}, "'flat'"),
        ],
    )
    def test_what_the_loader_would_refuse_is_an_error(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(GeneratorError, match=message):
            self.make(tmp_path, **changes)


def test_the_program_tells_the_error_in_its_last_line(tmp_path: Path) -> None:
    asked = tmp_path / "request.json"
    asked.write_text('{"protocol": 7}')
    done = subprocess.run(
        [sys.executable, RECIPE / "generate.py", asked, tmp_path / "out.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "protocol 7 is not 1" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out.json").exists()


class TestStandin:
    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(RECIPE / "standin"), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_it_has_what_generators_read(self) -> None:
        done = self.run(
            "import torch, torch.nn.functional as F\n"
            "from torch.distributed import ProcessGroup\n"
            "from torch.utils.cpp_extension import check_compiler_is_gcc\n"
            "assert repr(torch.bfloat16) == 'torch.bfloat16' and torch.half is torch.float16\n"
            "assert torch.float8_e4m3fn.itemsize == 1 and torch.float32.itemsize == 4\n"
            "assert torch._C._GLIBCXX_USE_CXX11_ABI and torch.version.cuda is None\n"
            "assert not torch.cuda.is_available() and torch.cuda.device_count() == 0\n"
            "class Module(torch.nn.Module): pass\n"
            "Module()\n"
            "def annotated(x: torch.Tensor | None, g: ProcessGroup = None) -> torch.Generator: ...\n"
            "@torch.library.custom_op('a::b', mutates_args=())\n"
            "def op(x): return x + 1\n"
            "assert op(1) == 2 and op.register_fake(len) is len\n"
            "@torch.no_grad()\n"
            "def no(x): return x\n"
            "assert torch.compile(no) is no and no(3) == 3\n"
        )
        assert done.returncode == 0, done.stderr

    def test_what_it_has_not_fails_loudly(self) -> None:
        done = self.run("import torch\ntorch.zeros(3)")
        assert "the stand-in torch has no torch.zeros" in done.stderr


@pytest.mark.parametrize("version", VERSIONS)
class TestRecipe:
    def test_requirements_are_pinned_with_hashes(self, version: str) -> None:
        text = (RECIPE / f"requirements-{version}.txt").read_text().replace("\\\n", "")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert lines
        assert all("==" in line and "--hash=sha256:" in line for line in lines)
        assert any(line.startswith("apache-tvm-ffi==0.1.11 ") for line in lines)
        assert not any(line.startswith("torch==") for line in lines)

    def test_every_profile_resolves_for_the_architectures_of_the_targets(self, version: str, tmp_path: Path) -> None:
        data = VERSIONS[version]
        for target in data["targets"]:
            code = target["code"]
            number = int(code.rstrip("af"))
            arch = vars(Arch(code, "", "", number, code.lstrip("0123456789")))
            for profile in data["profiles"].values():
                asked = request(tmp_path, arch=arch, profiles=data["profiles"], profile=profile)
                patterns, _ = selection._patterns(asked)
                assert patterns
                assert len(set(patterns)) == len(patterns)

    def test_the_core_holds_attention_in_both_halves(self, version: str) -> None:
        core = VERSIONS[version]["profiles"]["core"]["modules"]
        for name in core:
            if "_bf16_" in name:
                assert name.replace("_bf16_", "_f16_") in core


def test_costs_are_well_formed() -> None:
    lines = [line for line in (RECIPE / "costs.tsv").read_text().splitlines() if not line.startswith("#")]
    header, *rows = (line.split("\t") for line in lines)
    assert header[:6] == ["version", "arch", "unit", "family", "cpu_s", "peak_mib"]
    for row in rows:
        assert len(row) == 7, row
        assert row[0] in (*VERSIONS, "*")
        assert row[2].count("/") == 1
        assert float(row[4]) > 0
        assert int(row[5]) > 0
        assert row[6] in ("measured", "guessed")
    assert [row for row in rows if row[2] == "*/*.cu"], "a unit that no other row knows"
