"""Small Python environments on disk: a torch, NVIDIA's libraries, packages of kernels, as installers leave them."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufiles import region_for
from sofiles import make_so

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.doctor import Report, examine
from smwheel.doctor.environment import Environment
from smwheel.doctor.machine import Machine
from smwheel.gpu import Driver, Gpu
from smwheel.wheels import published

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GIB = 1 << 30
ROOM = 96 * GIB


def gpu(code: str = "120", index: int = 0, **changes: Any) -> Gpu:
    """A GPU whose memory is free."""
    names = {"120": "NVIDIA RTX PRO 6000", "90": "NVIDIA H200", "121": "NVIDIA GB10", "80": "NVIDIA A100"}
    made: dict[str, Any] = {"name": names[code], "arch": Arch.parse(code), "total": ROOM, "free": ROOM - GIB}
    return Gpu(index, **(made | changes))


def machine(*gpus: Gpu, driver: Mapping[str, str] | None = None, **changes: Any) -> Machine:
    """A machine with these GPUs (one RTX PRO 6000 if none), a driver for CUDA 13.0, and no compilers."""
    driven = Driver(**({"version": "580.95.05", "cuda": "13.0"} | dict(driver or {})), gpus=gpus or (gpu(),))
    made: dict[str, Any] = {
        "driver": driven,
        "processor": "x86_64",
        "devices": 1,
        "shared_memory": 16 * GIB,
        "libraries": {"libcuda.so.1": Path("/usr/lib/libcuda.so.1")},
        "variables": {"PATH": ""},
    }
    return Machine(**(made | changes))


NO_GPU = Machine(driver=Driver(problem="there is no nvidia-smi on PATH"), shared_memory=GIB, variables={"PATH": ""})


class Place:
    """An environment under construction."""

    def __init__(self, root: Path, python: tuple[int, int] = (3, 12)) -> None:
        self.root, self.python = root, python
        self.site = root / "lib" / f"python3.{python[1]}" / "site-packages"
        self.site.mkdir(parents=True)

    def environment(self) -> Environment:
        """What doctor looks at."""
        return Environment(self.root, self.root / "bin" / "python", self.python, (self.site,))

    def examine(self, on: Machine | None = None, **more: Any) -> Report:
        """Examine it on a machine."""
        return examine(on or machine(), self.environment(), **more)

    def install(
        self,
        name: str,
        version: str,
        files: Mapping[str, bytes | Path] | None = None,
        *,
        requires: Iterable[str] = (),
        entry_points: str = "",
        editable: Path | None = None,
    ) -> Path:
        """Put a distribution there, with METADATA and RECORD; returns its metadata directory."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        headers = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
            *(f"Requires-Dist: {one}" for one in requires),
        ]
        contents: dict[str, bytes | Path] = dict(files or {})
        contents[f"{info}/METADATA"] = ("\n".join(headers) + "\n").encode()
        if entry_points:
            contents[f"{info}/entry_points.txt"] = entry_points.encode()
        if editable:
            url = {"url": f"file://{editable}", "dir_info": {"editable": True}}
            contents[f"{info}/direct_url.json"] = json.dumps(url).encode()
        rows = [self._put(path, content) for path, content in contents.items()]
        (self.site / info / "RECORD").write_text("".join(rows) + f"{info}/RECORD,,\n")
        return self.site / info

    def _put(self, path: str, content: bytes | Path) -> str:
        data = content.read_bytes() if isinstance(content, Path) else content
        target = self.site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        return f"{path},sha256={digest},{len(data)}\n"

    def torch(self, version: str = "2.14.1", cuda: str = "13.0") -> Place:
        """Install a torch that loads NVIDIA's libraries as the real one does."""
        local = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
        major = cuda.partition(".")[0]
        said = f"__version__ = '{version}+{local}'\ncuda: Optional[str] = {cuda or None!r}\n"
        files: dict[str, bytes | Path] = {"torch/__init__.py": b"", "torch/version.py": said.encode()}
        files |= {f"torch/lib/{name}": data for name, data in torch_libraries(major).items()}
        self.install("torch", version, files)
        if cuda:
            nvidia = {f"nvidia/cu{major}/lib/{name}": data for name, data in nvidia_libraries(major).items()}
            self.install("nvidia-cuda-runtime", f"{cuda}.1", nvidia)
        return self

    def remove(self, pattern: str) -> Place:
        """Delete files."""
        for path in self.site.glob(pattern):
            path.unlink()
        return self


CUDA_LIBRARIES = ("libcudart", "libcublas", "libcublasLt", "libnvrtc")


@cache
def torch_libraries(major: str) -> dict[str, bytes]:
    """Libraries of torch that need those of CUDA."""
    path = f"$ORIGIN/../../nvidia/cu{major}/lib:$ORIGIN"
    cuda = tuple(f"{name}.so.{major}" for name in CUDA_LIBRARIES)
    parts: dict[str, tuple[str, ...]] = {"libc10.so": (), "libtorch_cpu.so": ("libc10.so",)}
    if major:
        parts |= {
            "libc10_cuda.so": ("libc10.so", cuda[0]),
            "libtorch_cuda.so": ("libc10_cuda.so", "libtorch_cpu.so", *cuda),
            "libtorch.so": ("libtorch_cpu.so", "libtorch_cuda.so"),
            "libtorch_global_deps.so": (cuda[0],),
        }
    else:
        parts |= {"libtorch.so": ("libtorch_cpu.so",), "libtorch_global_deps.so": ()}
    parts["libtorch_python.so"] = ("libtorch.so", "libc10.so")
    return {name: shared(name, needed=needed, rpath=path) for name, needed in parts.items()}


@cache
def nvidia_libraries(major: str) -> dict[str, bytes]:
    """The libraries that NVIDIA's packages bring."""
    return {f"{name}.so.{major}": shared(f"{name}.so.{major}") for name in CUDA_LIBRARIES}


def shared(soname: str, **changes: Any) -> bytes:
    """The bytes of a shared object."""
    with tempfile.TemporaryDirectory() as work:
        return make_so(Path(work) / "made.so", soname=soname, **changes).read_bytes()


@cache
def real_names(version: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that the published common_ops asks of torch, and libraries that it needs, as the recipe recorded them."""
    facts = published.read(recipe.load("sgl-kernel").directory / "published" / f"{version}.json")
    library = next(one for one in facts.libraries if one.name == "sgl_kernel/sm100/common_ops.abi3.so")
    return library.asks, library.needed


INIT = b"import torch\nfrom sgl_kernel.load_utils import _load\ncommon_ops = _load()\n"


def kernels(version: str, *codes: str, directories: Iterable[str] = ("sm90", "sm100")) -> dict[str, bytes | Path]:
    """Files as sgl-kernel's wheel has them, with code for `codes` and the real wheel's needs."""
    asks, needed = real_names(version)
    library = shared("", asks=asks, needed=needed, fatbin=region_for(*codes))
    files: dict[str, bytes | Path] = {"sgl_kernel/__init__.py": INIT, "sgl_kernel/load_utils.py": b"def _load(): ...\n"}
    files |= {f"sgl_kernel/{directory}/common_ops.abi3.so": library for directory in directories}
    return files


def codes(report: Report) -> list[str]:
    """Return the codes of what was found, in the order in which it is said."""
    return [one.code for one in report.findings]


def program(path: Path, text: str) -> Path:
    """A program that prints a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path
