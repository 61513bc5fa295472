"""Where packages are looked for: the settings that pip has on this machine, asked of pip itself.

pip merges its files (machine, user, environment) and PIP_* variables; its answer is taken as it is, so that what
`pip download` finds is found here too. The default index is asked of pip as well.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from dataclasses import dataclass

from smwheel.errors import NetworkError

_SECTIONS = ("global", "download", ":env:")  # weakest first, as pip applies them to `pip download`
_DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True)
class IndexSettings:
    """Locations in the order in which they are asked, and how hosts are reached; `timeout` in seconds."""

    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    cert: str = ""
    trusted_hosts: tuple[str, ...] = ()
    proxy: str = ""
    timeout: float = 15.0


@functools.cache
def pip_settings(python: str = sys.executable) -> IndexSettings:
    """Return the index settings of `python -m pip` on this machine (asked once in a process: it takes a second).

    Raises:
        NetworkError: that Python has no pip that answers, so nobody knows where to look.
    """
    values = _parse(_ask(python, "-m", "pip", "config", "list"))
    indexes: tuple[str, ...] = ()
    if values.get("no-index", "").lower() not in _TRUE:
        index = values.get("index-url") or _ask(python, "-c", _DEFAULT_INDEX)
        indexes = (index.strip(), *values.get("extra-index-url", "").split())
    return IndexSettings(
        indexes=indexes,
        find_links=tuple(values.get("find-links", "").split()),
        cert=values.get("cert", ""),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        proxy=values.get("proxy", ""),
        timeout=float(values.get("timeout") or values.get("default-timeout") or IndexSettings.timeout),
    )


def _parse(listing: str) -> dict[str, str]:
    """Merge the lines of `pip config list` (`section.key='value'`) by the strength of their sections."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        name, equals, literal = line.partition("=")
        section, dot, key = name.rpartition(".")
        if equals and dot and section in found:
            value = ast.literal_eval(literal)
            if value:  # pip ignores empty values
                found[section][key] = str(value)
    return {key: value for section in _SECTIONS for key, value in found[section].items()}


def _ask(python: str, *arguments: str) -> str:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = subprocess.run(
        [python, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or [f"exit status {result.returncode}"]
        raise NetworkError(
            f"cannot ask pip for its index settings: {lines[-1]}",
            where=python,
            cure=f"install pip for this Python: {python} -m ensurepip",
        )
    return result.stdout
