"""What smwheel adds to upstream's commands so that the same plan gives the same bytes.

Measured with nvcc 13.0: by default two runs differ in the names of temporary files that end up in the object;
`-objtemp` alone makes them equal. A linker's symbol table is of no use to a loader and is left out.
"""

from __future__ import annotations


def settled(command: list[str], kind: str) -> list[str]:
    """Return the command of a unit as it will be run."""
    added = {"cuda": "-objtemp", "devicelink": "-Xlinker=-s", "link": "-s"}.get(kind)
    if added is None or added in command:
        return command
    return [command[0], added, *command[1:]]
