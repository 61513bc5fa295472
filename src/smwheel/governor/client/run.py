"""The launcher: asks the broker, runs the compiler, reports, and does what the broker says of the outcome.

To the build system it is the compiler: arguments, exit code, signals, stdin and stdout are the compiler's; stderr
comes when the verdict is in, so that a run that was killed for memory and done again is never seen.

When the broker dies, the launchers go on one at a time and say so: each holds a lock while its compiler runs,
shared while the broker lives, for itself when not. When the program that started the broker dies (it holds a lock
as long as it lives), or the build system that started the launcher, the compiler is killed. Nothing depends on
process numbers of others: launchers may run in a process namespace of their own.

Messages are lines of JSON over `broker.sock` in the governor's directory: ask → go, done → verdict.
"""

from __future__ import annotations

import _socket
import fcntl
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs as much as starting Python
    from typing import Any, NoReturn

# What compilers print when a stage was killed, or was refused memory; the exit code alone does not tell.
MEMORY_SIGNS = (
    b"died due to signal 9",
    b"Killed signal terminated program",
    b"virtual memory exhausted",
    b"out of memory allocating",
    b"LLVM ERROR: out of memory",
    b"std::bad_alloc",
    b"Cannot allocate memory",
)
KILLED_CODE = 128 + signal.SIGKILL
SIGN_TAIL = 1 << 16

# How long a launcher whose broker is gone waits to see whether the whole build is.
GRACE_SECONDS = 0.25

# So that the kernel kills a compiler, never the build system, the broker or a launcher.
COMPILER_OOM_SCORE = b"600"
PR_SET_PDEATHSIG = 1

UNIT_ENDS = (".cu", ".cpp", ".cc", ".cxx", ".c", ".C", ".o", ".a", ".ptx", ".cubin", ".fatbin", ".ii")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class LaunchError(Exception):
    """The command must not run; the message is for the one who builds."""


class BrokerGoneError(Exception):
    """The broker hung up or does not answer."""


class Child:
    """The process that runs now, for the signal handler; `pid` is 0 when none does."""

    pid = 0
    group = False
    stopped_by = 0


def main(arguments: list[str]) -> int:
    """Run one command under the governor; return its exit code."""
    governor, unit, command = parse(arguments)
    if not command:
        sys.stderr.write("launcher: no command given\n")
        return 2
    if not governor or "SMWHEEL_GOVERNED" in os.environ:
        execute(command)
    try:
        with open(f"{governor}/session.json", encoding="utf-8") as file:  # noqa: PTH123  # pathlib costs 5 ms
            session = json.load(file)
        if not unit and not is_unit(command):
            execute(command)
        planned = bool(unit)
        unit = unit or name_of(command, session["root"])
        command = enforce(governor, session, unit, command, strict=planned)
    except (LaunchError, OSError, ValueError) as error:
        sys.stderr.write(f"smwheel: {unit or command[0]}: {error}\n")
        return 1
    for number in FORWARDED:
        signal.signal(number, _forward)
    return Launch(governor, session, unit, command).run()


def parse(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Split the launcher's own options from the command."""
    values = {"--governor": os.environ.get("SMWHEEL_GOVERNOR", ""), "--unit": ""}
    rest = list(arguments)
    while len(rest) >= 2 and rest[0] in values:
        values[rest[0]] = rest[1]
        del rest[:2]
    if rest and rest[0] == "--":
        del rest[0]
    return values["--governor"], values["--unit"], rest


def is_unit(command: list[str]) -> bool:
    """Return whether a command compiles or links something (and does not only print its version)."""
    return any(argument.endswith(UNIT_ENDS) for argument in command[1:])


def name_of(command: list[str], root: str) -> str:
    """Return a name for a unit that was given none: its output, below the build's root where it lies there."""
    output = command[-1]
    for index, argument in enumerate(command[:-1]):
        if argument == "-o":
            output = command[index + 1]
    return output.removeprefix(root.rstrip("/") + "/")


def enforce(governor: str, session: dict[str, Any], unit: str, command: list[str], *, strict: bool) -> list[str]:
    """Return the command as the plan allows it, and write down what was changed and what it compiles for."""
    if os.path.basename(command[0]) != "nvcc":  # noqa: PTH119
        return command
    from smwheel.governor.client import rewrite  # noqa: PLC0415  # only for nvcc

    if session["policy"]:
        command = allowed(governor, session, unit, command, strict=strict)
    if codes := rewrite.compiled_codes(command):
        append(f"{governor}/compiles.jsonl", {"unit": unit, "codes": codes})
    return command


def allowed(governor: str, session: dict[str, Any], unit: str, command: list[str], *, strict: bool) -> list[str]:
    """Return the command as the plan allows it, and write down what was changed."""
    from smwheel.governor.client import rewrite  # noqa: PLC0415  # only for nvcc

    try:
        command, changes = rewrite.rewrite(command, session["policy"], unit, strict=strict)
    except rewrite.PolicyError as error:
        append(f"{governor}/rewrites.jsonl", {"unit": unit, "refused": str(error), "command": command})
        raise LaunchError(str(error)) from None
    if changes:
        append(f"{governor}/rewrites.jsonl", {"unit": unit, "changes": changes})
    return command


def append(path: str, record: dict[str, Any]) -> None:
    """Add one JSON line to a file that other launchers add to as well (one write, so lines stay whole)."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(number, json.dumps(record).encode() + b"\n")
    finally:
        os.close(number)


def execute(command: list[str]) -> NoReturn:
    """Become the command: for what is no unit, and for a compiler that a governed one calls."""
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
    except OSError as error:
        sys.stderr.write(f"launcher: {command[0]}: {error.strerror}\n")
        sys.exit(127)


class Launch:
    """One unit's way through the broker."""

    def __init__(self, governor: str, session: dict[str, Any], unit: str, command: list[str]) -> None:
        self.governor = governor
        self.session = session
        self.unit = unit
        self.command = command
        self.broker: _socket.socket | None = None
        self.pending = b""
        self.mark = "alone"
        self.poll = select.poll()
        self.masters: set[int] = set()
        self._watch(os.getppid())
        self.turn = os.open(f"{governor}/turn.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.held = open_hidden(governor)

    def run(self) -> int:
        """Run the command until an outcome stands; return the exit code (or die of the compiler's signal)."""
        self._connect()
        while True:
            self._wait_for_turn()
            outcome, status = self._compile()
            fcntl.flock(self.turn, fcntl.LOCK_UN)
            action, message = self._report(outcome)
            if action != "retry":
                break
            os.ftruncate(self.held, 0)
            os.lseek(self.held, 0, os.SEEK_SET)
        self._show_stderr(message)
        return leave(status)

    def _connect(self) -> None:
        directory = os.open(self.governor, os.O_PATH | os.O_CLOEXEC)
        broker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            # Through the directory's descriptor: the path of a socket may have 107 bytes at most.
            broker.connect(f"/proc/self/fd/{directory}/broker.sock")
            self.broker = broker
            self.poll.register(broker.fileno(), select.POLLIN)
            self._send({"op": "ask", "unit": self.unit})
        except (OSError, BrokerGoneError):
            self._lose_broker()
        finally:
            os.close(directory)

    def _wait_for_turn(self) -> None:
        while self.broker is not None:
            try:
                message = self._receive()
                if message["op"] == "go":
                    self.mark = message["mark"]
                    fcntl.flock(self.turn, fcntl.LOCK_SH)
                    return
            except BrokerGoneError:
                self._lose_broker()
        fcntl.flock(self.turn, fcntl.LOCK_EX)
        self._end_if_orphaned()

    def _compile(self) -> tuple[dict[str, Any], int]:
        began = time.monotonic()
        pid = self._start()
        self._watch_until_end(pid)
        _, status, usage = os.wait4(pid, 0)
        Child.pid = 0
        code = os.waitstatus_to_exitcode(status)
        outcome = {
            "op": "done",
            "code": code,
            "wall": time.monotonic() - began,
            "cpu": usage.ru_utime + usage.ru_stime,
            "peak": usage.ru_maxrss * 1024,
            "killed": code != 0 and not Child.stopped_by and self._memory_ran_out(code),
        }
        return outcome, status

    def _start(self) -> int:
        """Fork and become the compiler in a process group of its own, which dies when this process dies."""
        import ctypes  # noqa: PLC0415  # while the broker is asked nothing waits for it

        libc = ctypes.CDLL(None, use_errno=True)
        # A compiler that reads a terminal must stay in the terminal's group.
        Child.group = not os.isatty(0)
        pid = os.fork()
        if pid:
            Child.pid = pid
            if Child.group:
                set_group(pid)
            return pid
        try:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if Child.group:
                set_group(0)
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            prefer_for_killing()
            os.dup2(self.held, 2)
            os.environ.update(SMWHEEL_GOVERNED="1", SMWHEEL_BUILD=self.session["build"], SMWHEEL_UNIT=self.mark)
            os.execvp(self.command[0], self.command)  # noqa: S606  # no shell is wanted
        except OSError as error:
            os.write(2, f"launcher: {self.command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _watch_until_end(self, pid: int) -> None:
        """Wait for the compiler; kill it when the build that wants it is gone."""
        try:
            child = os.pidfd_open(pid)
        except OSError:
            return
        self.poll.register(child, select.POLLIN)
        while True:
            ready = {number for number, _ in self.poll.poll()}
            if child in ready:
                break
            if ready & self.masters:
                kill(pid, signal.SIGKILL)
            elif self.broker is not None and not self._broker_lives():
                self._lose_broker()
        self.poll.unregister(child)
        os.close(child)

    def _memory_ran_out(self, code: int) -> bool:
        if code in (-signal.SIGKILL, KILLED_CODE):
            return True
        size = os.fstat(self.held).st_size
        tail = os.pread(self.held, SIGN_TAIL, max(0, size - SIGN_TAIL))
        return any(sign in tail for sign in MEMORY_SIGNS)

    def _report(self, outcome: dict[str, Any]) -> tuple[str, str]:
        """Return what to do with an outcome, and what to say; without a broker, decide as it would."""
        if self.broker is not None:
            try:
                self._send(outcome)
                while (answer := self._receive())["op"] != "verdict":
                    pass
            except BrokerGoneError:
                self._lose_broker()
            else:
                return answer["action"], answer["message"]
            if outcome["killed"]:
                return "retry", ""
        if outcome["killed"]:
            return "fail", f"{self.unit}: killed for memory although it ran alone"
        return "accept", ""

    def _show_stderr(self, message: str) -> None:
        offset = 0
        while chunk := os.pread(self.held, 1 << 20, offset):
            offset += len(chunk)
            write_all(2, chunk)
        if message:
            write_all(2, f"smwheel: {message}\n".encode())

    def _send(self, message: dict[str, Any]) -> None:
        assert self.broker is not None  # noqa: S101
        try:
            self.broker.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise BrokerGoneError from error

    def _receive(self) -> dict[str, Any]:
        """Return the broker's next message; end when the build that wants this unit is gone."""
        assert self.broker is not None  # noqa: S101
        while b"\n" not in self.pending:
            ready = {number for number, _ in self.poll.poll()}
            if ready & self.masters:
                leave(signal.SIGTERM)
            if self.broker.fileno() in ready:
                try:
                    data = self.broker.recv(1 << 16)
                except OSError:
                    data = b""
                if not data:
                    raise BrokerGoneError
                self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _broker_lives(self) -> bool:
        assert self.broker is not None  # noqa: S101
        try:
            data = self.broker.recv(1 << 16)
        except OSError:
            return False
        self.pending += data
        return bool(data)

    def _lose_broker(self) -> None:
        self._end_if_orphaned()
        sys.stderr.write("smwheel: the broker is gone; units run one at a time from here on\n")
        sys.stderr.flush()
        if self.broker is not None:
            try:  # noqa: SIM105  # contextlib costs a millisecond a unit
                self.poll.unregister(self.broker.fileno())
            except KeyError:
                pass
            self.broker.close()
            self.broker = None

    def _watch(self, pid: int) -> None:
        try:
            number = os.pidfd_open(pid)
        except OSError:
            return
        self.masters.add(number)
        self.poll.register(number, select.POLLIN)

    def _end_if_orphaned(self) -> None:
        """End, with the compiler, if the build is over; its broker and it may end in either order."""
        until = time.monotonic() + GRACE_SECONDS
        while not self._build_is_over():
            if time.monotonic() > until:
                return
            time.sleep(GRACE_SECONDS / 5)
        if Child.pid:
            kill(Child.pid, signal.SIGKILL)
        leave(signal.SIGTERM)

    def _build_is_over(self) -> bool:
        """Return whether the program that started the broker has ended: it holds this lock while it lives."""
        number = os.open(f"{self.governor}/session.lock", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(number)
        return True


def open_hidden(directory: str) -> int:
    """Return a file without a name, for what the compiler writes to stderr."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        path = f"{directory}/stderr.{os.getpid()}"
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.unlink(path)  # noqa: PTH108
        return number


def set_group(pid: int) -> None:
    """Give a process a group of its own; parent and child both try, whoever is first."""
    try:  # noqa: SIM105  # as above
        os.setpgid(pid, 0)
    except OSError:
        pass


def prefer_for_killing() -> None:
    """Ask the kernel to take this process, not its parents, when memory runs out."""
    try:
        number = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(number, COMPILER_OOM_SCORE)
    except OSError:
        pass
    finally:
        os.close(number)


def kill(pid: int, number: int) -> None:
    """Send a signal to the compiler's process group, or to it alone when it has none of its own."""
    try:  # noqa: SIM105  # as above
        (os.killpg if Child.group else os.kill)(pid, number)
    except OSError:
        pass


def _forward(number: int, _frame: object) -> None:
    """Hand a signal to the compiler; before there is one, die of it."""
    if Child.pid:
        Child.stopped_by = number
        kill(Child.pid, number)
    else:
        leave(number)


def leave(status: int) -> int:
    """Return the exit code of a wait status; if it is a signal, die of it as the compiler did."""
    number = status & 0x7F
    if not number:
        return status >> 8
    import resource  # noqa: PLC0415  # one memory image, the compiler's, is enough

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def write_all(number: int, data: bytes) -> None:
    """Write all of it; a reader that has gone away is not the compiler's failure."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(number, view) :]
    except OSError:
        pass
