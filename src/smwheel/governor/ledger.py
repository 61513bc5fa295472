"""What units took, kept in the cache from build to build, and what follows for the next.

A prediction is the first of: the same unit (same recipe, architecture, toolkit and flags); the same unit of
another version, toolkit or set of flags; the same unit as the recipe's `costs.tsv` measured it; the unit's family, but
no less memory than `costs.tsv` guesses; that guess; a prior of 4 GiB.
"""

from __future__ import annotations

import csv
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from smwheel.errors import RecipeError
from smwheel.governor.prediction import PRIOR, PRIOR_SECONDS, Prediction, Source

MIB = 1 << 20
SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS costs (
    recipe TEXT NOT NULL, version TEXT NOT NULL, unit TEXT NOT NULL, family TEXT NOT NULL, arch TEXT NOT NULL,
    toolkit TEXT NOT NULL, flags TEXT NOT NULL, peak INTEGER NOT NULL, cpu REAL NOT NULL, wall REAL NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (recipe, version, unit, arch, toolkit, flags)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unit ON costs (recipe, unit, arch);
CREATE INDEX IF NOT EXISTS family ON costs (recipe, family, arch);
"""

# The planner does not choose the indexes by itself, and then reads all of a recipe for each unit.
_SAME = "WHERE recipe=? AND version=? AND unit=? AND arch=? AND toolkit=? AND flags=?"
_EQUAL = " AND ".join(f"old.{n} = new.{n}" for n in ("recipe", "version", "unit", "arch", "toolkit", "flags"))
_OTHER = "INDEXED BY unit WHERE recipe=? AND unit=? AND arch=?"
_FAMILY = "INDEXED BY family WHERE recipe=? AND family=? AND arch=?"


@dataclass(frozen=True)
class Build:
    """What all units of a build have in common: the key of the ledger, but for the unit."""

    recipe: str
    version: str
    arch: str
    toolkit: str
    flags: str = ""


@dataclass(frozen=True)
class Cost:
    """What one unit took: peak in bytes, seconds of CPU and of wall time."""

    recipe: str
    version: str
    unit: str
    family: str
    arch: str
    toolkit: str
    flags: str
    peak: int
    cpu: float
    wall: float


@dataclass(frozen=True)
class CostRow:
    """A line of a recipe's `costs.tsv`; `unit` is a unit's id or an fnmatch pattern, `peak_mib` is in MiB."""

    version: str
    arch: str
    unit: str
    family: str
    cpu_s: float
    peak_mib: float
    kind: Literal["measured", "guessed"]


class Ledger:
    """The SQLite file of all costs. Many builds may use it at once; each write is a transaction of its own."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or begin one."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._begin()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            # It only remembers measurements: a damaged one is put aside and a new one begun.
            path.replace(path.with_suffix(".damaged"))
            self._begin()

    def _begin(self) -> None:
        with self._open() as database:
            database.executescript(_SCHEMA)
            database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30)
        try:
            with database:
                yield database
        finally:
            database.close()

    def record(self, cost: Cost) -> None:
        """Keep what a unit took, in place of what the same unit took before."""
        with self._open() as database:
            database.execute(
                "INSERT OR REPLACE INTO costs VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (*asdict(cost).values(), time.time()),
            )

    def merge(self, other: Path) -> None:
        """Keep what another ledger's file knows too; where both know a unit, what was measured later.

        Raises:
            sqlite3.Error: it is no ledger.
        """
        columns = ", ".join((*(field.name for field in fields(Cost)), "at"))
        with self._open() as database:
            database.execute("ATTACH ? AS other", (str(other),))
            database.execute(
                f"INSERT OR REPLACE INTO costs ({columns}) SELECT {columns} FROM other.costs AS new WHERE NOT EXISTS "  # noqa: S608
                f"(SELECT 1 FROM main.costs AS old WHERE old.at >= new.at AND {_EQUAL})"
            )

    def all(self, recipe: str | None = None) -> list[Cost]:
        """Return every cost, of one recipe or of all, heaviest first."""
        names = ", ".join(field.name for field in fields(Cost))
        with self._open() as database:
            rows = database.execute(
                f"SELECT {names} FROM costs WHERE ? IS NULL OR recipe=? ORDER BY peak DESC, unit",  # noqa: S608
                (recipe, recipe),
            ).fetchall()
        return [Cost(*row) for row in rows]

    def predict(  # noqa: PLR0917  # the parts of one key, in its order
        self,
        recipe: str,
        version: str,
        unit: str,
        family: str,
        arch: str,
        toolkit: str,
        flags_digest: str,
        said: Callable[[], Prediction] = lambda: PRIOR,
    ) -> Prediction:
        """Return what a unit is expected to need, from the best source there is.

        `said` tells what the recipe's costs say of it; it is asked only about a unit that was never built here. A
        family's light units say nothing of its heavy ones: so a unit that the recipe measured is as it was there, and
        none needs less memory than the recipe guesses.
        """
        with self._open() as database:

            def took(source: Source, where: str, *values: str) -> Prediction | None:
                peak, cpu = database.execute(
                    f"SELECT max(peak), avg(cpu) FROM costs {where}",  # noqa: S608
                    values,
                ).fetchone()
                return None if peak is None else Prediction.of(peak, cpu, source)

            built = took(Source.SAME, _SAME, recipe, version, unit, arch, toolkit, flags_digest) or took(
                Source.VERSION, _OTHER, recipe, unit, arch
            )
            if built:
                return built
            shipped = said()
            if shipped.source is Source.COSTS or not family:
                return shipped
            kin = took(Source.FAMILY, _FAMILY, recipe, family, arch)
        if kin is None:
            return shipped
        return kin.at_least(shipped.peak_bytes) if shipped.source is Source.GUESSED else kin


def predict_from_rows(
    rows: Collection[CostRow], *, version: str, names: Collection[str], family: str, arch: str
) -> Prediction:
    """Return what a recipe's costs say of a unit that goes by these names, or the prior.

    A file goes from the particular to the general and its first row that fits holds: rows for the unit with this
    version and architecture (`*` is any), then rows for the unit, then the heaviest row of the family. Only a measured
    row of the first kind is a measurement of this unit.
    """
    by_unit = [row for row in rows if any(row.unit == name or fnmatchcase(name, row.unit) for name in names)]
    same = [row for row in by_unit if row.version in (version, "*") and row.arch in (arch, "*")]
    kin = (row for row in rows if family and row.family == family)
    best = next(iter(same or by_unit), None) or max(kin, key=lambda row: row.peak_mib, default=None)
    if best is None:
        return PRIOR
    source = Source.COSTS if same and best.kind == "measured" else Source.GUESSED
    return Prediction.of(best.peak_mib * MIB, best.cpu_s or PRIOR_SECONDS, source)


def read_costs_tsv(path: Path) -> list[CostRow]:
    """Read a recipe's `costs.tsv`.

    Raises:
        RecipeError: a column is missing, or a value is no number; names the line.

    """
    names = [field.name for field in fields(CostRow)]
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t")
        missing = [name for name in names if name not in (reader.fieldnames or [])]
        if missing:
            raise RecipeError(
                f"columns are missing: {', '.join(missing)}",
                where=str(path),
                cure=f"the first line must be: {' '.join(names)} (separated by tabs)",
            )
        rows = []
        for line in reader:
            try:
                row = CostRow(
                    version=line["version"],
                    arch=line["arch"],
                    unit=line["unit"],
                    family=line["family"],
                    cpu_s=float(line["cpu_s"]),
                    peak_mib=float(line["peak_mib"]),
                    kind="measured" if line["kind"] == "measured" else "guessed",
                )
            except (TypeError, ValueError) as error:
                raise RecipeError(
                    f"line {reader.line_num} cannot be read: {error}",
                    where=str(path),
                    cure="cpu_s and peak_mib are numbers, kind is measured or guessed",
                ) from None
            rows.append(row)
    return rows


def write_costs_tsv(path: Path, costs: Iterable[Cost]) -> int:
    """Write costs as a recipe ships them, all `measured`; return how many there are."""
    lines = ["\t".join(field.name for field in fields(CostRow))]
    lines += [
        f"{c.version}\t{c.arch}\t{c.unit}\t{c.family}\t{c.cpu:.1f}\t{c.peak / MIB:.0f}\tmeasured"
        for c in sorted(costs, key=lambda c: (c.version, c.arch, c.unit))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines) - 1
