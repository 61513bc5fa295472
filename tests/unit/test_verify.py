"""Every way to be wrong that verify must name, each made here, small."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from gpufiles import PTX, entry, region, region_for
from wheelmaker import GOOD, OLD_TORCH_NAME, OPS, TAG, TORCH_NAME, failures, ops, problems, wheel

from smwheel.arch import Arch
from smwheel.errors import MalformedError, VerifyError, VerifyIncompleteError
from smwheel.recipe import ForeignCode, SystemNeed, Undefined
from smwheel.verify import Expectations, Level, Status, verify_wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))


def test_a_good_wheel_passes_every_check(tmp_path: Path) -> None:
    verdict = verify_wheel(wheel(tmp_path), GOOD)
    assert [one for one in verdict.results if one.status is not Status.PASSED] == []
    assert verdict.level is Level.STATIC
    assert verdict.error() is None
    assert not list((tmp_path / "cache/verify").iterdir())


def test_a_pure_wheel_passes(tmp_path: Path) -> None:
    path = wheel(tmp_path, [("ops/a.py", b"")], tags=["py3-none-any"])
    assert failures(path, replace(GOOD, required=(), loader=None)) == {}


def test_what_is_not_known_is_not_passed(tmp_path: Path) -> None:
    verdict = verify_wheel(wheel(tmp_path), Expectations())
    assert verdict.status is Status.NOT_MADE
    assert verdict.level is Level.NONE
    error = verdict.error()
    assert isinstance(error, VerifyIncompleteError)
    for flag in ("--arch", "--recipe", "--stack"):
        assert flag in error.message
    assert verdict.as_json()["status"] == "incomplete"


def test_a_failure_outweighs_what_is_not_known(tmp_path: Path) -> None:
    path = wheel(tmp_path, headers=[])
    assert isinstance(verify_wheel(path, Expectations()).error(), VerifyError)


def rezip(path: Path, changes: dict[str, bytes | None]) -> Path:
    """Pack a wheel again with members changed (or left out, for None) and RECORD as it was."""
    with zipfile.ZipFile(path) as archive:
        members: dict[str, bytes | None] = {info.filename: archive.read(info) for info in archive.infolist()}
    target = path.parent / "changed" / path.name
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for member, data in (members | changes).items():
            if data is not None:
                archive.writestr(member, data)
    return target


# W1


def test_a_changed_file_is_not_what_record_says(tmp_path: Path) -> None:
    found = problems(rezip(wheel(tmp_path), {"ops/__init__.py": b"import os\n"}), "W101")
    assert [one.file for one in found] == ["ops/__init__.py"]
    assert "not what RECORD says" in found[0].message


def test_record_must_be_complete(tmp_path: Path) -> None:
    assert "is not listed" in problems(rezip(wheel(tmp_path), {"extra": b"x"}), "W101")[0].message
    gone = rezip(wheel(tmp_path / "b"), {"ops/__init__.py": None})
    assert "not in the wheel" in problems(gone, "W101")[0].message


def test_a_name_that_metadata_does_not_have(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    renamed = path.rename(path.with_name(path.name.replace("ops-", "other-")))
    messages = [one.message for one in problems(renamed, "W102")]
    assert messages == [
        "the file is named for 'other', METADATA says 'ops'",
        "the file is named for 'other', its metadata directory 'ops'",
    ]


def test_a_hyphen_in_the_metadata_directory(tmp_path: Path) -> None:
    """cuda-wheels#2: installers take `name-0.0.0` for the version."""
    path = wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    target = tmp_path / path.name.replace("ops-", "ops_kit-")
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("ops-1.0", "ops-kit-1.0"), data.replace(b"Name: ops", b"Name: ops-kit"))
    assert "hyphen" in problems(target, "W102")[0].message


def test_a_renamed_file_has_another_version_inside(tmp_path: Path) -> None:
    """sglang#14327, cuda-wheels#2: the release script renamed the file only."""
    path = wheel(tmp_path, version="1.0")
    renamed = path.rename(path.with_name(path.name.replace("1.0", "1.0+cu130")))
    messages = [one.message for one in problems(renamed, "W103")]
    assert len(messages) == 2
    assert "1.0+cu130, METADATA says '1.0'" in messages[0]
    assert "metadata directory says '1.0'" in messages[1]


def test_another_release_than_the_stacks(tmp_path: Path) -> None:
    assert "the stack has ops 2.0" in problems(wheel(tmp_path), "W103", replace(GOOD, version="2.0"))[0].message


def test_a_tag_changed_in_the_file_name_only(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    renamed = path.rename(path.with_name(path.name.replace("manylinux_2_28", "manylinux_2_34")))
    assert "2_34_x86_64, WHEEL says cp310-abi3-manylinux_2_28" in problems(renamed, "W104")[0].message


def test_machine_code_in_a_pure_wheel(tmp_path: Path) -> None:
    path = wheel(tmp_path, tags=["py3-none-any"])
    assert problems(path, "W105")[0].file == OPS
    assert "is tagged any" in problems(path, "W501")[0].message


def test_a_missing_file(tmp_path: Path) -> None:
    assert "'ops/x.so'" in problems(wheel(tmp_path), "W106", replace(GOOD, required=("ops/x.so",)))[0].message


def test_strangers(tmp_path: Path) -> None:
    path = wheel(
        tmp_path, [("include/fmt.h", b""), ("lib/a.txt", b""), ("other/a.py", b""), (OPS, ops(tmp_path / "so"))]
    )
    assert [one.file for one in problems(path, "W107")] == ["include/", "lib/", "other/a.py"]
    without_recipe = replace(GOOD, recipe="")
    assert [one.file for one in problems(path, "W107", without_recipe)] == ["include/", "lib/"]


# W2


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (("90",), "it has sm_90"),
        (("120",), "it has sm_120, and sm_120a is due"),
        (("80", "121a"), "loads on exactly its own GPU"),
    ],
)
def test_code_for_another_architecture(tmp_path: Path, codes: tuple[str, ...], said: str) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", *codes))])
    found = problems(path, "W202")
    assert [one.file for one in found] == [OPS]
    assert "no code for sm_120a" in found[0].message
    assert said in found[0].message


def test_an_a_cubin_does_not_serve_the_next_minor(tmp_path: Path) -> None:
    """vllm#43367: sm_120a code asked to run on 12.1."""
    found = problems(wheel(tmp_path), "W202", replace(GOOD, arch=Arch.parse("121a")))
    assert "no code for sm_121a: it has sm_120a; code with suffix 'a' loads on exactly its own GPU" in found[0].message


def test_family_code_is_told_from_plain_code(tmp_path: Path) -> None:
    """TensorRT-LLM PR#19069: the entry's own flags tell `f` from plain, whatever other tools print."""
    family = wheel(tmp_path / "f", [(OPS, ops(tmp_path / "f", "120f"))])
    plain = wheel(tmp_path / "p", [(OPS, ops(tmp_path / "p", "120"))])
    expect = replace(GOOD, arch=Arch.parse("120f"))
    assert problems(family, "W202", expect) == []
    assert "it has sm_120, and sm_120f is due" in problems(plain, "W202", expect)[0].message


def test_one_library_of_several_lacks_the_target(tmp_path: Path) -> None:
    """sglang#37640: each file is judged, and the one without the code is named."""
    files = [
        (OPS, ops(tmp_path / "so")),
        ("ops/spatial_ops.abi3.so", ops(tmp_path / "so", "80", "90", name="spatial_ops.abi3.so")),
    ]
    assert [one.file for one in problems(wheel(tmp_path, files), "W202")] == ["ops/spatial_ops.abi3.so"]


def test_only_ptx_for_the_target(tmp_path: Path) -> None:
    """vllm#31700: the driver must compile it, and an older one cannot."""
    blob = region(entry("120", b".version 8.8", kind=PTX))
    found = failures(wheel(tmp_path, [(OPS, ops(tmp_path / "so", fatbin=blob))]))
    assert "holds only PTX" in found["W201"]
    assert "a driver older than the CUDA that made it refuses" in found["W202"]
    assert "PTX (sm_120)" in found["W204"]


@pytest.mark.parametrize(
    ("blob", "said"),
    [
        (None, "holds no GPU code at all"),
        (region(), "holds a fat binary with nothing in it"),
        (bytes(64), "holds a fat binary with nothing in it"),
    ],
)
def test_no_code_at_all(tmp_path: Path, blob: bytes | None, said: str) -> None:
    """sglang#7249 and vllm PR#38126: kernels were silently left out."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", fatbin=blob))])
    assert [one.message for one in problems(path, "W201")] == [said]
    assert problems(path, "W201", replace(GOOD, no_device_code=("ops/*",))) == []


def test_unreadable_code_has_failed(tmp_path: Path) -> None:
    blob = bytearray(region_for("120a"))
    blob[20] = 99
    found = problems(wheel(tmp_path, [(OPS, ops(tmp_path / "so", fatbin=bytes(blob)))]), "W201")
    assert found[0].file.startswith(OPS)


def test_foreign_code_and_its_exception(tmp_path: Path) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", "120a", "80", "75"))])
    assert "1 × sm_75, 1 × sm_80" in problems(path, "W203")[0].message
    allowed = ForeignCode(files=["ops/sm100/*"], allow=["75", "80"], reason="device link")
    assert problems(path, "W203", replace(GOOD, foreign=(allowed,))) == []


def test_plain_code_beside_the_suffixed_is_not_foreign(tmp_path: Path) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", "120a", "120"))])
    assert problems(path, "W203") == []


def test_the_recipe_may_say_that_plain_code_is_enough(tmp_path: Path) -> None:
    for code, count in (("120", 0), ("80", 1), ("121a", 1)):
        path = wheel(tmp_path / code, [(OPS, ops(tmp_path / code, code))])
        assert len(problems(path, "W202", replace(GOOD, plain=("ops/sm100/*",)))) == count
        assert len(problems(path, "W202", replace(GOOD, plain=("ops/other/*",)))) == 1


def test_the_recipe_may_say_that_another_suffix_stands_alone(tmp_path: Path) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", "120a"))])
    for_family = replace(GOOD, arch=Arch.parse("120f"))
    here, elsewhere = ["ops/sm100/*"], ["ops/other/*"]
    for files, allow, count in ((here, "120a", 0), (elsewhere, "120a", 1), (here, "121a", 1)):
        rule = ForeignCode(files=files, allow=[allow], reason="upstream compiles it so")
        assert len(problems(path, "W202", replace(for_family, foreign=(rule,)))) == count


def test_ptx_beside_machine_code(tmp_path: Path) -> None:
    blob = region(entry("120a"), entry("120", b".version", kind=PTX))
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", fatbin=blob))])
    assert "1 × PTX (sm_120)" in problems(path, "W204")[0].message
    assert problems(path, "W204", replace(GOOD, ptx=True)) == []


def test_lto_ir_is_refused(tmp_path: Path) -> None:
    blob = region(entry("120a"), entry("120a", b"ir", kind=8))
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", fatbin=blob))])
    assert "LTO-IR" in problems(path, "W204", replace(GOOD, ptx=True))[0].message


def test_code_where_the_loader_never_looks(tmp_path: Path) -> None:
    """sglang#38515: only sm120/ holds the code, and the loader opens sm100/."""
    made = ops(tmp_path / "so")
    path = wheel(tmp_path, [("ops/sm120/common_ops.abi3.so", made)])
    message = problems(path, "W205")[0].message
    assert "opens ops/sm100/common_ops.*, and there is no such file" in message
    assert "lies in ops/sm120/common_ops.abi3.so, which it never opens" in message


def test_the_directory_that_is_opened_lacks_the_code(tmp_path: Path) -> None:
    """sglang#38515: sm90/ is full, sm100/ lacks sm_120a."""
    files = [
        (OPS, ops(tmp_path / "so", "100a")),
        ("ops/sm90/common_ops.abi3.so", ops(tmp_path / "so90", "90a", "120a")),
    ]
    found = problems(wheel(tmp_path, files), "W205")
    assert found[0].file == OPS
    assert "has no sm_120a code; the code for sm_120a lies in ops/sm90/" in found[0].message


def test_the_loader_rule_by_capability(tmp_path: Path) -> None:
    path = wheel(tmp_path, [("ops/sm90/common_ops.abi3.so", ops(tmp_path / "so", "90a"))])
    assert problems(path, "W205", replace(GOOD, arch=Arch.parse("90a"))) == []


def test_two_files_that_fit_the_loaders_pattern(tmp_path: Path) -> None:
    made = ops(tmp_path / "so")
    path = wheel(tmp_path, [(OPS, made), ("ops/sm100/common_ops.old.so", made)])
    assert "which it opens is chance" in problems(path, "W205")[0].message


def test_the_gpus_of_this_machine(tmp_path: Path) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so"))])
    assert not [one for one in verify_wheel(path, GOOD).results if one.code == "W206"]  # only when asked for
    assert problems(path, "W206", replace(GOOD, live=(Arch.parse("120"),))) == []
    found = problems(path, "W206", replace(GOOD, live=(Arch.parse("120"), Arch.parse("90"))))
    assert [one.message for one in found] == ["made for 12.0, this GPU is 9.0"]
    nothing = next(one for one in verify_wheel(path, replace(GOOD, live=())).results if one.code == "W206")
    assert nothing.status is Status.NOT_MADE
    assert "no GPU is visible here" in nothing.reason


# W3


def test_an_undeclared_system_library(tmp_path: Path) -> None:
    """odysseus PR#6257: libnuma.so.1, which no Python dependency brings."""
    made = ops(tmp_path / "so", needed=["libtorch.so", "libc10.so", "libcudart.so.13", "libnuma.so.1"])
    path = wheel(tmp_path, [(OPS, made)])
    found = problems(path, "W301")
    assert "libnuma.so.1" in found[0].message
    assert "apt package libnuma1, dnf package numactl-libs" in found[0].message
    need = SystemNeed(name="numa", library="libnuma.so.1", apt="libnuma1", dnf="numactl-libs", stage="run")
    verdict = verify_wheel(path, replace(GOOD, system=(need,)))
    result = next(one for one in verdict.results if one.code == "W301")
    assert result.status is Status.PASSED
    assert "system library libnuma.so.1: apt libnuma1, dnf numactl-libs" in result.notes[0]


def test_torch_and_cuda_that_nothing_requires(tmp_path: Path) -> None:
    messages = [one.message for one in problems(wheel(tmp_path, headers=[]), "W301")]
    assert messages == [
        "needs libtorch.so, libc10.so, and the wheel does not require torch",
        "needs libcudart.so.13, and nothing that the wheel requires brings it",
    ]


def test_a_bundled_library_must_be_reachable(tmp_path: Path) -> None:
    helper = ops(tmp_path / "so", name="libhelper.so.1", soname="libhelper.so.1")
    needs = ["libtorch.so", "libc10.so", "libhelper.so.1"]
    lost = wheel(tmp_path / "a", [(OPS, ops(tmp_path / "a", needed=needs)), ("ops/lib/libhelper.so.1", helper)])
    assert "no RPATH leads there" in problems(lost, "W301")[0].message
    led = ops(tmp_path / "b", needed=needs, rpath="$ORIGIN/../lib")
    path = wheel(tmp_path / "b", [(OPS, led), ("ops/lib/libhelper.so.1", helper)])
    assert problems(path, "W301") == []


def test_patterns_of_the_recipe_allow_a_library(tmp_path: Path) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", needed=["libtorch.so", "libc10.so", "libffi_x.so"]))])
    assert "libffi_x.so" in problems(path, "W301")[0].message
    assert problems(path, "W301", replace(GOOD, needed=("libffi_*.so",))) == []


def test_libraries_of_another_cuda(tmp_path: Path) -> None:
    """sglang#29646, vllm#44335: a CUDA 12 wheel beside CUDA 13 torch."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", needed=["libc10.so", "libnvrtc.so.12", "libcufft.so.12"]))])
    found = problems(path, "W302")
    assert len(found) == 1
    assert "libnvrtc.so.12 of CUDA 12, and the stack has CUDA 13 (torch 2.14.1)" in found[0].message
    assert problems(path, "W302", replace(GOOD, cuda="12.8")) == []


def test_a_loader_that_names_another_cuda(tmp_path: Path) -> None:
    """sglang#18203: the package preloads libcudart.so.12 by name."""
    code = b'"""Preload libcudart.so.12"""\nimport ctypes\nctypes.CDLL(base + "/libcudart.so.12")\n'
    path = wheel(tmp_path, [("ops/load.py", code), (OPS, ops(tmp_path / "so"))])
    assert [one.file for one in problems(path, "W302")] == ["ops/load.py"]
    comment = b"# libcudart.so.12\nname = f'libcudart.so.{major}'\n"
    fine = wheel(tmp_path / "b", [("ops/load.py", comment), (OPS, ops(tmp_path / "b"))])
    assert problems(fine, "W302") == []


@pytest.mark.parametrize(
    "name", ["libcuda.so.1", "libcuda-1a2b3c4d.so.580.1", "libtorch_cpu.so", "libcudart-aabbccdd.so.13"]
)
def test_what_must_not_be_bundled(tmp_path: Path, name: str) -> None:
    """pytorch/ao PR#2927: the repair step swallowed the driver."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so")), (f"ops.libs/{name}", ops(tmp_path / "so", name=name))])
    assert [one.file for one in problems(path, "W303")] == [f"ops.libs/{name}"]


@pytest.mark.parametrize("rpath", ["/usr/local/cuda/lib64/stubs", "/opt/build/lib", "$ORIGIN/stubs"])
def test_an_rpath_that_leads_out(tmp_path: Path, rpath: str) -> None:
    """sglang#4060: the driver stub belongs to the link, not into the RPATH."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", rpath=rpath))])
    assert rpath in problems(path, "W304")[0].message


# W4


def test_names_that_this_torch_does_not_have(tmp_path: Path) -> None:
    """sglang#29317: the architecture is there; the fault is torch's binary interface, and is called that."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", asks=[TORCH_NAME, OLD_TORCH_NAME]))])
    found = failures(path)
    assert set(found) == {"W401"}
    assert "torch ABI" in found["W401"]
    assert f"c10::impl::cow::materialize_cow_storage ({OLD_TORCH_NAME})" in found["W401"]
    assert "all are in torch 2.9.1 (CUDA 12)" in found["W401"]


def test_a_name_in_a_torch_library_that_is_not_needed(tmp_path: Path) -> None:
    made = ops(
        tmp_path / "so",
        asks=["_ZN5torch3jit17parseSchemaOrNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEb"],
        needed=["libc10.so"],
    )
    assert problems(wheel(tmp_path, [(OPS, made)]), "W401") != []


def test_a_torch_without_a_table_is_not_passed(tmp_path: Path) -> None:
    verdict = verify_wheel(wheel(tmp_path), replace(GOOD, torch="2.99.0"))
    result = next(one for one in verdict.results if one.code == "W401")
    assert result.status is Status.NOT_MADE
    assert "2.14.1 (CUDA 13)" in result.reason


def test_the_other_string_type(tmp_path: Path) -> None:
    """sglang#5100: compiled with the old std::string."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", asks=["_ZN5torch3jit17parseSchemaOrNameERKSsb"]))])
    message = problems(path, "W402")[0].message
    assert message.startswith("CXX11 ABI differs: it was compiled with _GLIBCXX_USE_CXX11_ABI=0, torch 2.14.1 with 1")


def test_a_name_that_nobody_brings(tmp_path: Path) -> None:
    """vllm#29030: the call was compiled in, the file that defines it was not."""
    name = "_Z20cutlass_moe_mm_sm100iPv"
    made = ops(tmp_path / "so", asks=[TORCH_NAME, name])
    found = failures(wheel(tmp_path, [(OPS, made)]))
    assert set(found) == {"W403"}
    assert name in found["W403"]
    other = ops(tmp_path / "b", brings=[name], name="libother.abi3.so")
    both = wheel(tmp_path / "b", [(OPS, made), ("ops/libother.abi3.so", other)])
    assert problems(both, "W403") == []


def test_names_that_upstream_leaves_undefined_are_the_recipes_to_allow(tmp_path: Path) -> None:
    name = "_Z20cutlass_moe_mm_sm100iPv"
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", asks=[TORCH_NAME, name]))])
    rule = Undefined(files=["ops/*"], names=r"_Z\d+cutlass_moe_mm", reason="upstream never calls it")
    assert problems(path, "W403", replace(GOOD, undefined=(rule,))) == []
    elsewhere = Undefined(files=["other/*"], names=r"_Z\d+cutlass_moe_mm", reason="upstream never calls it")
    assert problems(path, "W403", replace(GOOD, undefined=(elsewhere,))) != []


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        ([], "does not require torch"),
        (["torch"], "accepts 40 minor versions"),
        (["torch>=2.14"], "accepts 26 minor versions"),
        (["torch==2.11.0"], "the stack has torch 2.14.1"),
        (["torch==2.14.1; extra == 'all'"], "does not require torch"),
        (["Requires torch == 2.14.1"], "does not require torch"),
    ],
)
def test_torch_must_be_pinned(tmp_path: Path, requires: list[str], said: str) -> None:
    path = wheel(tmp_path, headers=[])
    if requires:
        name = "ops-1.0+cu130.sm120a.dist-info/METADATA"
        with zipfile.ZipFile(path) as archive:
            metadata = archive.read(name)
        lines = "".join(f"Requires-Dist: {text}\n" for text in requires)
        path = rezip(path, {name: metadata.replace(b"\n\n", f"\n{lines}\n".encode())})
    assert said in problems(path, "W404")[0].message


@pytest.mark.parametrize("pin", ["torch==2.14.*", "torch==2.14.1", "torch>=2.14,<2.15", "torch~=2.14.0"])
def test_pins_that_do(tmp_path: Path, pin: str) -> None:
    assert problems(wheel(tmp_path, headers=[("Requires-Dist", pin)]), "W404") == []


def test_a_file_for_one_python_in_an_abi3_wheel(tmp_path: Path) -> None:
    """sglang#37640."""
    name = "ops/infllm_ops.cpython-310-x86_64-linux-gnu.so"
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so")), (name, ops(tmp_path / "so", name="infllm.so"))])
    found = problems(path, "W405")
    assert [one.file for one in found] == [name]
    assert "for cpython-310 alone, in a wheel that claims every Python from 3.10 on" in found[0].message
    assert problems(path, "W405", replace(GOOD, one_python=("ops/infllm_ops.*",))) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("_PyObject_GetMethod", "no part of the stable ABI"), ("PyType_GetModuleByDef", "only since 3.")],
)
def test_symbols_outside_the_stable_abi(tmp_path: Path, name: str, said: str) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", asks=[TORCH_NAME, name]))])
    assert said in problems(path, "W405")[0].message
    assert (
        problems(
            wheel(tmp_path / "b", [(OPS, ops(tmp_path / "b", asks=[name]))], tags=[TAG.replace("abi3", "cp310")]),
            "W405",
        )
        == []
    )


# W5


@pytest.mark.parametrize(
    ("tag", "versions", "said"),
    [
        ("linux_x86_64", {"GLIBC_2.14": "libc.so.6"}, "is tagged linux_x86_64: no public index takes it"),
        ("manylinux2014_x86_64", {"GLIBC_2.27": "libc.so.6"}, f"{OPS} asks for GLIBC_2.27"),
        ("manylinux_2_28_x86_64", {"GLIBCXX_3.4.30": "libstdc++.so.6"}, "asks for GLIBCXX_3.4.30"),
        ("manylinux_2_28_aarch64", {"GLIBC_2.14": "libc.so.6"}, "made for x86_64"),
    ],
)
def test_a_tag_that_is_not_true(tmp_path: Path, tag: str, versions: dict[str, str], said: str) -> None:
    """packaging-problems#684 (linux_*), llm-d-kv-cache#445 (a libstdc++ newer than the serving system's)."""
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", versions=versions))], tags=[f"cp310-abi3-{tag}"])
    assert said in problems(path, "W501")[0].message


def test_names_of_glibcs_own(tmp_path: Path) -> None:
    path = wheel(tmp_path, [(OPS, ops(tmp_path / "so", versions={"GLIBC_PRIVATE": "libc.so.6"}))])
    assert "GLIBC_PRIVATE" in problems(path, "W502")[0].message


# W7


def test_sizes(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    found = failures(path, replace(GOOD, max_wheel=100, max_installed=100))
    assert set(found) == {"W701", "W702"}
    assert "at most 0.0 MB" in found["W701"]


# the verdict


def test_verdict_as_json_follows_the_schema(tmp_path: Path) -> None:
    import json

    import jsonschema

    schema = json.loads((Path(__file__).parents[2] / "docs/verify.schema.json").read_text())
    for expect in (GOOD, Expectations(), replace(GOOD, max_wheel=1)):
        value = verify_wheel(wheel(tmp_path), expect).as_json()
        jsonschema.validate({"wheels": [value]}, schema)
        assert value["exit_code"] == {"passed": 0, "incomplete": 14, "failed": 13}[value["status"]]


def test_no_wheel_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ops-1.0-py3-none-any.whl"
    path.write_bytes(b"")
    with pytest.raises(MalformedError):
        verify_wheel(path, GOOD)


def test_the_page_of_checks_is_that_of_the_code() -> None:
    from smwheel.verify.page import page
    from smwheel.verify.registry import registered

    assert (Path(__file__).parents[2] / "docs/checks.md").read_text() == page()
    assert all(f"| {one.code} |" in page() for one in registered())


def test_two_checks_may_not_share_a_code() -> None:
    from smwheel.verify.registry import check

    with pytest.raises(ValueError, match="two checks have the code W101"):
        check("W101", "", cure="")(lambda *_: ())
