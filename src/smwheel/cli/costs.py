"""Command about what units cost: costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from smwheel.cli.app import JsonOption, app, console, print_json
from smwheel.errors import UsageError
from smwheel.estimate import ledger
from smwheel.governor.ledger import MIB, write_costs_tsv


@app.command()
def costs(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="The recipe; all if not given.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write them as the recipe's costs.tsv to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the units of earlier builds took: memory and time, heaviest first."""
    kept = ledger()
    found = kept.all(recipe)
    if export is not None:
        if not found or recipe is None:
            raise UsageError(
                "there are no costs to export" if recipe else "an export is of one recipe",
                where=str(kept.path),
                cure="build it once" if recipe else "name the recipe: smwheel costs RECIPE --export FILE",
            )
        write_costs_tsv(export, found)
    if as_json:
        print_json({"ledger": str(kept.path), "costs": [asdict(cost) for cost in found]})
        return
    table = Table("recipe", "version", "arch", "unit", "peak MiB", "CPU s", "wall s", box=None)
    for cost in found:
        numbers = (f"{cost.peak / MIB:.0f}", f"{cost.cpu:.1f}", f"{cost.wall:.1f}")
        table.add_row(cost.recipe, cost.version, cost.arch, cost.unit, *numbers)
    console.print(table if found else f"nothing was measured yet ({kept.path})")
