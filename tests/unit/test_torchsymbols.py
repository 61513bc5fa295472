from __future__ import annotations

import pytest

from smwheel.errors import MalformedError
from smwheel.wheels.elf import ElfFacts
from smwheel.wheels.torchsymbols import (
    TorchSymbols,
    available,
    is_torch_name,
    load,
    matching,
    pack,
    unpack,
    uses_new_strings,
    uses_old_strings,
)

TABLE = TorchSymbols(
    torch="9.1.0",
    cuda="13",
    wheel="torch-9.1.0.whl",
    sha256="0" * 64,
    exported={
        "libc10.so": frozenset({"_ZN3c101aEv"}),
        "libtorch.so": frozenset(),
        "libtorch_cpu.so": frozenset({"_ZN2at1bEv", "_ZN5torch1cB5cxx11Ev"}),
        "libtorch_python.so": frozenset({"_ZN5torch1pEv"}),
    },
    needed={
        "libc10.so": ("libc.so.6",),
        "libtorch.so": ("libtorch_cpu.so",),
        "libtorch_cpu.so": ("libc10.so", "libtorch.so"),
        "libtorch_python.so": ("libtorch.so",),
    },
)


def test_round_trip() -> None:
    assert unpack(pack(TABLE)) == TABLE
    assert pack(unpack(pack(TABLE))) == pack(TABLE)


@pytest.mark.parametrize("data", [b"", b"not zstd", pack(TABLE)[:-4]])
def test_damaged_table(data: bytes) -> None:
    with pytest.raises(MalformedError, match="no table of torch symbols"):
        unpack(data)


def test_names_are_found_through_what_libraries_need() -> None:
    def missing(*needed: str) -> tuple[str, ...]:
        asked = frozenset({"_ZN3c101aEv", "_ZN2at1bEv", "_ZN5torch1pEv", "PyList_New"})
        return TABLE.missing(ElfFacts(machine="x86_64", needed=needed, undefined=asked))

    assert missing("libtorch_python.so") == ()
    assert missing("libtorch.so") == ("_ZN5torch1pEv",)
    assert missing("libc10.so") == ("_ZN2at1bEv", "_ZN5torch1pEv")
    assert missing() == ("_ZN2at1bEv", "_ZN3c101aEv", "_ZN5torch1pEv")


@pytest.mark.parametrize(
    ("name", "torch"),
    [
        ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", True),
        ("_ZNK2at10TensorBase14const_data_ptrIiLi0EEEPKT_v", True),
        ("_ZNR5torch7Library4_defEON3c1014FunctionSchemaE", True),
        ("_ZTVN3c105ErrorE", True),
        ("_Z4callRKN2at6TensorE", False),
        ("_ZNSt6vectorIN2at6TensorESaIS1_EED1Ev", False),
        ("cudaMalloc", False),
    ],
)
def test_torch_names(name: str, torch: bool) -> None:
    assert is_torch_name(name) is torch


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("_ZN5torch3jit17parseSchemaOrNameERKSsb", True),
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", True),
        ("_ZN3c109AddressSsEv", False),
        ("_ZN3c108SsLengthEv", False),
        ("_ZNK2at10TensorBase14const_data_ptrIiLi0EEEPKT_v", False),
        ("_ZN5torch3jit17parseSchemaOrNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEb", False),
    ],
)
def test_old_strings(name: str, old: bool) -> None:
    assert uses_old_strings(name) is old


def test_new_strings() -> None:
    assert uses_new_strings("_ZN3c1013MessageLogger6streamB5cxx11Ev")
    assert not uses_new_strings("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs")


@pytest.mark.parametrize(("torch", "cuda"), available())
def test_every_table_that_is_shipped(torch: str, cuda: str) -> None:
    table = load(torch, cuda)
    assert table is not None
    assert (table.torch, table.cuda) == (torch, cuda)
    assert len(table.sha256) == 64
    assert table.new_strings
    assert len(table.exported["libtorch_cpu.so"]) > 50_000
    assert "_ZNK3c105Error4whatEv" in table.reachable(["libtorch.so"])


def test_which_releases_have_a_name() -> None:
    def fits(name: str) -> tuple[tuple[str, str], ...]:
        facts = ElfFacts(machine="x86_64", needed=("libtorch.so",), undefined=frozenset({name}))
        return matching([facts])

    assert fits("_ZNK3c105Error4whatEv") == available()
    assert fits("_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE") == (
        ("2.9.1", "12"),
        ("2.10.0", "12"),
        ("2.11.0", "13"),
    )
    assert load("1.0", "13") is None
