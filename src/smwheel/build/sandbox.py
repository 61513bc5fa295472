"""Where compilers run: fixed paths, no network, no survivors.

nvcc writes a hash of a source's absolute path into internal names, so the same plan built in two directories
gives different bytes whatever prefix maps say. Where the kernel allows (root, or unprivileged user namespaces) every
directory that a build touches is therefore bound to a fixed path in a private mount namespace, with no network
and in a process namespace of its own: when smwheel dies, everything in it dies too.

In a container that has these directories mounted at the fixed paths already, nothing is left to do. Where neither is
so, compilers run on the real paths; the plan says so, because the bytes depend on them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from smwheel.governor.survivors import MARK, find_survivors

FIXED_ROOT = Path("/srv/smwheel")
"""Where a build's directories appear inside the namespace; a mount point that every Linux system has."""

BUILD_ID = MARK
"""Environment variable that every process of a build carries, so that survivors of a killed one are found."""

# The build's directories are bound first. Then /dev holds nothing but what programs expect (no disks) and /run nothing
# (a service's socket would be a way out), and every other mount becomes read-only; it keeps its other options, as the
# kernel demands of those who did not make it. A mount that refuses is left as writable as it is to who runs smwheel.
# Without capabilities nothing of this can be undone.
_MOUNT_SCRIPT = """
set -e
mount -t tmpfs -o mode=755 smwheel /srv
while [ "$1" != -- ]; do
  mkdir -p "/srv/smwheel/$1"
  mount --bind "$2" "/srv/smwheel/$1"
  if [ "$3" = ro ]; then mount -o remount,bind,ro "/srv/smwheel/$1" 2>/dev/null || :; fi
  shift 3
done
shift
mkdir -p /srv/dev/shm
for device in null zero full random urandom; do
  : >"/srv/dev/$device"
  mount --bind "/dev/$device" "/srv/dev/$device"
done
for link in fd fd/0:stdin fd/1:stdout fd/2:stderr; do ln -s "/proc/self/${link%:*}" "/srv/dev/${link#*:}"; done
mount --rbind /srv/dev /dev
mount -t tmpfs smwheel /run
for path in /proc/sys /proc/sysrq-trigger; do mount --bind "$path" "$path" 2>/dev/null || :; done
while read -r _ _ _ _ point options _; do
  case $point in
    /proc|/dev|/dev/*|/srv/*) ;;
    *) mount -o "remount,bind,ro,${options#r?}" "$(printf %b "$point")" 2>/dev/null || : ;;
  esac
done </proc/self/mountinfo
cd "$1"
shift
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bind:
    """One directory that a build touches: its name inside, its real path, and whether it may be written."""

    name: str
    real: Path
    writable: bool = False


@dataclass(frozen=True)
class Sandbox:
    """How commands of one build are run; make it with `make_sandbox`."""

    binds: tuple[Bind, ...]
    namespaces: bool
    network: bool
    reason: str = field(default="", compare=False)
    """Why there are no namespaces, as a sentence; empty if there are."""
    mounted: bool = False
    """Whether the directories lie at the fixed paths without namespaces, as a container has them mounted."""

    @property
    def fixed(self) -> bool:
        """Whether commands see the fixed paths."""
        return self.namespaces or self.mounted

    def inside(self, path: Path | str) -> str:
        """Return the path as commands of this build must write it."""
        text = str(path)
        if not self.fixed:
            return text
        for bind in sorted(self.binds, key=lambda bind: -len(str(bind.real))):
            real = str(bind.real)
            if text == real or text.startswith(real + "/"):
                return f"{FIXED_ROOT}/{bind.name}{text[len(real) :]}"
        return text

    def outside(self, text: str) -> Path:
        """Return the real path of what a command of this build wrote as `text`."""
        if self.fixed:
            for bind in self.binds:
                prefix = f"{FIXED_ROOT}/{bind.name}"
                if text == prefix or text.startswith(prefix + "/"):
                    return Path(f"{bind.real}{text[len(prefix) :]}")
        return Path(text)

    def neutral(self, text: str) -> str:
        """Return text with this machine's directories replaced by the fixed ones, for digests and evidence."""
        if self.fixed:
            return text
        for bind in sorted(self.binds, key=lambda bind: -len(str(bind.real))):
            text = text.replace(str(bind.real), f"{FIXED_ROOT}/{bind.name}")
        return text

    def wrap(self, command: list[str], *, cwd: Path) -> list[str]:
        """Return the command line that runs `command` in this sandbox with `cwd` (a real path) as directory."""
        if self.mounted:
            return ["sh", "-c", 'cd "$1" && shift && exec "$@"', "smwheel", self.inside(cwd), *command]
        if not self.namespaces:
            return command
        mounts = [part for bind in self.binds for part in (bind.name, str(bind.real), "rw" if bind.writable else "ro")]
        return [*_unshare(network=self.network), "sh", "-c", _MOUNT_SCRIPT, "smwheel", *mounts, "--",
                self.inside(cwd), *command]  # fmt: skip


def make_sandbox(binds: list[Bind], *, network: bool = False) -> Sandbox:
    """Return the best sandbox that this kernel allows for these directories (which must exist)."""
    resolved = tuple(Bind(bind.name, bind.real.resolve(), bind.writable) for bind in binds)
    if all(_is_mounted(bind) for bind in resolved):
        return Sandbox(resolved, namespaces=False, network=has_network(), mounted=True)
    reason = namespaces_unusable(network=network)
    if not reason and any(bind.real.is_relative_to("/srv") for bind in resolved):
        reason = "a directory of this build lies under /srv"
    return Sandbox(resolved, namespaces=not reason, network=network or bool(reason), reason=reason)


def _is_mounted(bind: Bind) -> bool:
    fixed = FIXED_ROOT / bind.name
    return fixed.exists() and fixed.samefile(bind.real)


def has_network(tables: Path = Path("/proc/net")) -> bool:
    """Tell whether this process could reach another machine: a route leads over another device than loopback.

    In `route` (IPv4, after a heading) the device is a line's first word, in `ipv6_route` its last.
    """
    devices = [line.split()[0] for line in (tables / "route").read_text(encoding="ascii").splitlines()[1:]]
    if (tables / "ipv6_route").is_file():
        devices += [line.split()[-1] for line in (tables / "ipv6_route").read_text(encoding="ascii").splitlines()]
    return any(device != "lo" for device in devices)


@cache
def namespaces_unusable(*, network: bool = False) -> str:
    """Return why namespaces cannot be used here, as a sentence; empty if they can. Tried once a process."""
    if shutil.which("unshare") is None:
        return "the command unshare (util-linux) is not there"
    probe = [*_unshare(network=network), "sh", "-c", _MOUNT_SCRIPT, "smwheel", "probe", "/usr/bin", "ro", "--",
             f"{FIXED_ROOT}/probe", "true"]  # fmt: skip
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unshare failed: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"this kernel or container does not allow namespaces ({last})"
    return ""


def _unshare(*, network: bool) -> list[str]:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not network:
        command.append("--net")
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    return command


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; for `preexec_fn`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_survivors(build_id: str, *, timeout: float = 10.0) -> int:
    """Kill what is left of an earlier run of this build (found by its environment); return how many there were.

    `timeout` is in seconds; after it the processes are left to the kernel, which has the signal already.
    """
    found = find_survivors(build_id)
    pidfds = []
    for pid in found:
        try:
            pidfds.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    _wait_all(pidfds, timeout)
    return len(found)


def _wait_all(pidfds: list[int], timeout: float) -> None:
    import select  # noqa: PLC0415 - only this rare path needs it
    import time  # noqa: PLC0415

    deadline = time.monotonic() + timeout
    for pidfd in pidfds:
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        os.close(pidfd)
