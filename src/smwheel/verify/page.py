"""The page `docs/checks.md`, made from the checks themselves: `python -m smwheel.verify.page > docs/checks.md`."""

from __future__ import annotations

import sys

from smwheel.verify import runner
from smwheel.verify.registry import registered

_HEAD = """\
# The checks of `smwheel verify`

Made from the code (`python -m smwheel.verify.page`); do not edit.

A wheel is *proven* only if every check was made and passed, and then only to the level of the checks made: *static*
without `--import`, *imported* with it. Launching on a GPU and serving are proven by `smwheel smoke`. Exit codes: 0 all
passed, 13 one failed, 14 none failed and one could not be made. `--json` follows `verify.schema.json`.

A check that needs something not given takes it from the plan inside the wheel; where neither says, it is not made.
"""


def page() -> str:
    """Return the page's text."""
    parts = [_HEAD]
    for module in runner.MODULES:
        title = (module.__doc__ or "").splitlines()[0]
        parts.append(
            f"\n## {title}\n\n| code | what it means when it passes | what to do when not | needs |\n"
            "|---|---|---|---|\n"
        )
        parts += [
            f"| {one.code} | {one.means} | {one.cure} | {', '.join(one.needs)} |\n"
            for one in registered()
            if one.function.__module__ == module.__name__
        ]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
