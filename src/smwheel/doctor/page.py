"""The list of findings in `docs/doctor.md`: `python -m smwheel.doctor.page docs/doctor.md` makes it again."""

from __future__ import annotations

import sys
from pathlib import Path

from smwheel import doctor
from smwheel.doctor import importing
from smwheel.doctor.finding import Level, registered

MARK = "<!-- made from the code from here on: python -m smwheel.doctor.page docs/doctor.md -->\n"


def page(text: str) -> str:
    """Return the page with its list made from the findings; what is before the mark is kept."""
    parts = [text.partition(MARK)[0], MARK]
    for module in (*doctor.MODULES, importing):
        title = (module.__doc__ or "").splitlines()[0]
        rows = [
            f"| {one.code} | {one.title}{' (warning)' if one.level is Level.WARNING else ''} |\n"
            for one in registered().values()
            if one.function.__module__ == module.__name__
        ]
        if module is importing:
            rows = [f"| {importing.CODE} | {importing.TITLE} |\n"]
        parts.append(f"\n## {title}\n\n| code | what is wrong |\n|---|---|\n{''.join(rows)}")
    return "".join(parts)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
