"""Every error that smwheel raises on purpose.

One base class. A subclass is a kind of failure with an exit code of its own, so that a script can tell
"no network" from "the compiler was killed" without reading text. A message says what is wrong; `where` names
the file, key, unit or URL; `cure` is the one thing to do about it.
"""

from __future__ import annotations


class SmwheelError(Exception):
    """Base of all errors of smwheel; `exit_code` is the process's status when it ends the program."""

    exit_code = 1
    kind = "error"
    usual_cure = ""
    """What to do where an error of this kind says nothing of its own."""

    def __init__(self, message: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.cure = cure or self.usual_cure

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.cure:
            parts.append(f"To do: {self.cure}")
        return "\n".join(parts)

    def as_json(self) -> dict[str, str | int]:
        """Return the error as the object that `--json` prints."""
        return {
            "error": self.kind,
            "exit_code": self.exit_code,
            "message": self.message,
            "where": self.where,
            "cure": self.cure,
        }


class UsageError(SmwheelError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2
    kind = "usage"


class RecipeError(SmwheelError):
    """A recipe or stack file is wrong: the message names file, key and cure."""

    exit_code = 3
    kind = "recipe"


class ArchError(SmwheelError):
    """An architecture is unknown, or not to be had with this CUDA or this package."""

    exit_code = 4
    kind = "architecture"


class SourceError(SmwheelError):
    """A source cannot be used: not found, truncated, or an archive that is not safe to unpack."""

    exit_code = 5
    kind = "source"


class HashMismatchError(SourceError):
    """A source's bytes are not those that the recipe pins; nothing of it was kept."""

    exit_code = 6
    kind = "hash"


class NetworkError(SmwheelError):
    """Something must be fetched and cannot be: no network, index not answering, or `--offline`."""

    exit_code = 7
    kind = "network"


class ToolchainError(SmwheelError):
    """The CUDA toolkit is missing, incomplete, or of another version than the plan needs."""

    exit_code = 8
    kind = "toolchain"


class SystemNeedError(SmwheelError):
    """Something that only the system can give is missing: a compiler, a library's headers, disk space."""

    exit_code = 9
    kind = "system"


class BuildEnvironmentError(SmwheelError):
    """The build environment could not be made or is not the one that was locked."""

    exit_code = 10
    kind = "environment"


class BuildError(SmwheelError):
    """A unit failed to compile or link; the message carries its own last lines."""

    exit_code = 11
    kind = "build"


class OutOfMemoryError(BuildError):
    """A unit was killed for memory even when it ran alone."""

    exit_code = 12
    kind = "memory"


class VerifyError(SmwheelError):
    """A product was looked at and is not what it must be."""

    exit_code = 13
    kind = "verify"


class VerifyIncompleteError(SmwheelError):
    """A check could not be made, so nothing is proven."""

    exit_code = 14
    kind = "incomplete"


class MalformedError(SmwheelError):
    """A binary, wheel or archive does not follow its format; `where` holds the file and offset."""

    exit_code = 15
    kind = "malformed"
    usual_cure = "do not use this file: it is damaged, or not what its name says; download or build it again"


class LicenceError(SmwheelError):
    """The operation is not allowed by the licence of what it would change."""

    exit_code = 16
    kind = "licence"


class LockedError(SmwheelError):
    """Another live build holds the work directory or the store."""

    exit_code = 17
    kind = "locked"


class ContainerError(SmwheelError):
    """A container engine is not there, refuses, or has no usable base image."""

    exit_code = 18
    kind = "container"


class DoctorError(SmwheelError):
    """An environment was examined, and something in it will not work."""

    exit_code = 19
    kind = "doctor"


class PartialError(SmwheelError):
    """Some recipes were built and others were not; each reason was printed."""

    exit_code = 20
    kind = "partial"
