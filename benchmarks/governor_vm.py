"""Real kills under cgroup v2 on a host that has v1: the scenario of `governor_kills.py` in an emulated machine.

    apt-get install qemu-system-x86 busybox-static
    apt-get download linux-image-6.1.0-…-cloud-amd64 && dpkg -x linux-image-*.deb kernel
    python benchmarks/governor_vm.py kernel/boot/vmlinuz-*

Boots that kernel with this Python, busybox and smwheel as its only files; no disk, no network, no KVM needed. The
last two lines are those of `governor_kills.py`; exit 1 unless it was right and the cgroup was of version 2.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUSYBOX = Path("/bin/busybox")
LEFT_OUT = {
    "site-packages",
    "test",
    "tests",
    "ensurepip",
    "idlelib",
    "tkinter",
    "lib2to3",
    "__pycache__",
    "pydoc_data",
    "config-3.11-x86_64-linux-gnu",
    "distutils",
    "multiprocessing",
    "asyncio",
    "curses",
    "dbm",
    "unittest",
    "turtledemo",
    "wsgiref",
}
MEMORY_MIB = 2048
SECONDS = 240

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
export PATH=/bin PYTHONPATH=/app/src PYTHONHOME={home} LD_LIBRARY_PATH=/lib HOME=/tmp
{python} /app/benchmarks/governor_kills.py --simple
echo "exit code $?"
poweroff -f
"""


def main() -> None:
    """Boot, and say how it went."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit((__doc__ or "").strip())
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None or not BUSYBOX.is_file():
        sys.exit("qemu-system-x86_64 or /bin/busybox is not there: apt-get install qemu-system-x86 busybox-static")
    with tempfile.TemporaryDirectory(prefix="smwheel-vm-") as work:
        image = Path(work) / "initramfs"
        # Not compressed: the emulated processor would take most of a minute to unpack it.
        with image.open("wb") as file:
            file.writelines(archive(files()))
        command = [qemu, "-accel", "tcg", "-smp", "2", "-m", str(MEMORY_MIB), "-nographic", "-no-reboot"]
        command += ["-nic", "none", "-kernel", sys.argv[1], "-initrd", str(image)]
        command += ["-append", "console=ttyS0 loglevel=1 panic=-1 rdinit=/init"]
        console = Path(work) / "console"
        with console.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output)
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        text = console.read_text(errors="replace")
    sys.exit(0 if judge(text) else 1)


def judge(console: str) -> bool:
    """Print what the scenario said, and return whether it was right, under version 2."""
    lines = [line[line.index("{") :] for line in console.splitlines() if '{"right"' in line or '{"cgroup"' in line]
    if len(lines) != 2:
        print(console[-3000:])
        return False
    print("\n".join(lines))
    result, kernel = map(json.loads, lines)
    return bool(result["right"]) and kernel["cgroup"] == 2 and kernel["kernel_kills"] > 0


def files() -> dict[str, bytes | str | Path]:
    """Return the machine's files: path → content, a file to copy, or (as text) what a link points to."""
    python = Path(sys.executable).resolve()
    home = Path(sys.base_prefix)
    library = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    found: dict[str, bytes | str | Path] = {
        "init": INIT.format(home=home, python=python).encode(),
        "bin/busybox": BUSYBOX.resolve(),
        "bin/sh": "/bin/busybox",
        str(python).lstrip("/"): python,
    }
    for path in walk(library):
        if path.suffix != ".a" and "tkinter" not in path.name:
            found[str(path).lstrip("/")] = path
    for path in [*walk(ROOT / "src" / "smwheel"), *(ROOT / "benchmarks").glob("governor_*.py")]:
        found[f"app/{path.relative_to(ROOT)}"] = path
    extensions = [path for path in library.glob("lib-dynload/*.so") if "tkinter" not in path.name]
    for needed in libraries([python, *extensions]):
        loader = needed.name.startswith("ld-linux")
        found[str(needed).lstrip("/") if loader else f"lib/{needed.name}"] = needed.resolve()
    return found


def walk(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory, without what no scenario needs."""
    for entry in sorted(directory.iterdir()):
        if entry.is_dir() and entry.name not in LEFT_OUT:
            yield from walk(entry)
        elif entry.is_file():
            yield entry


def libraries(programs: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that programs load, as the loader finds them."""
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |\t)(/\S+) \(0x", listed)}


def archive(contents: dict[str, bytes | str | Path]) -> Iterator[bytes]:
    """Yield a cpio archive in the "newc" format, which the kernel unpacks (initramfs buffer format)."""
    directories = {str(parent) for name in contents for parent in Path(name).parents} - {"."}
    for name in ("proc", "sys", "dev", "tmp", *sorted(directories)):
        yield entry(name, stat.S_IFDIR | 0o755, b"")
    yield entry("dev/console", stat.S_IFCHR | 0o600, b"", device=(5, 1))
    for name, content in contents.items():
        match content:
            case str():
                yield entry(name, stat.S_IFLNK | 0o777, content.encode())
            case bytes():
                yield entry(name, stat.S_IFREG | 0o755, content)
            case Path():
                mode = 0o755 if os.access(content, os.X_OK) else 0o644
                yield entry(name, stat.S_IFREG | mode, content.read_bytes())
    yield entry("TRAILER!!!", 0, b"")


def entry(name: str, mode: int, data: bytes, *, device: tuple[int, int] = (0, 0)) -> bytes:
    """Return one member of the archive."""
    encoded = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers) + encoded
    return header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4)


if __name__ == "__main__":
    main()
