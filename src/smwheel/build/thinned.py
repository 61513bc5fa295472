"""Carrying out strategy `thin`."""

from __future__ import annotations

from smwheel.errors import SmwheelError
from smwheel.pipeline import Options
from smwheel.plan import Resolution
from smwheel.progress import Reporter
from smwheel.wheelhouse import Entry


def build_thinned(resolution: Resolution, options: Options, reporter: Reporter) -> list[Entry]:
    """To be written."""
    raise SmwheelError("thin is not there yet")
