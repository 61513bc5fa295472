"""Commands about finished wheels: inspect, thin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smwheel import recipe, stack
from smwheel.arch import Arch
from smwheel.cli.app import JsonOption, app, console, print_json
from smwheel.errors import MalformedError
from smwheel.progress import size
from smwheel.wheels import inspect as inspecting
from smwheel.wheels import rules, thin


@app.command()
def inspect(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="A wheel, a library, a directory, or an installed package's name."),
    ],
    python: Annotated[
        Path | None, typer.Option("--python", help="The Python or environment that the package is installed in.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what GPU code is inside, and on which GPUs, with which torch and CUDA it can run."""
    found = [inspecting.inspect(target, python=python) for target in targets]
    if as_json:
        print_json({"inspected": [one.as_json() for one in found]})
    else:
        for one in found:
            _print_inspection(one)
    if any(library.error for one in found for library in one.libraries):
        raise typer.Exit(MalformedError.exit_code)


def _print_inspection(found: inspecting.Inspection) -> None:
    name = f"{found.distribution} {found.version}".strip()
    console.print(f"[bold]{escape(name or found.path)}[/]  {size(found.size)}  {escape(' '.join(found.tags))}")
    table = Table("file", "size", "GPU code", "needs", "glibc from", "Python", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for library in found.libraries:
        row = library.as_json()
        code = " ".join(f"{arch}×{number}" for arch, number in row["code"].items())
        table.add_row(
            escape(library.name),
            size(library.size),
            escape(code) or "none" if not library.error else f"[red]{escape(library.error)}[/]",
            escape(_needs(row)),
            row["glibc_floor"],
            row["python"],
        )
    _print_table(table)
    console.print(escape(found.sentence()))


def _print_table(table: Table) -> None:
    """Print a table; into a file or a pipe without folding it to a terminal's width."""
    (console if console.is_terminal else Console(width=200, highlight=False)).print(table)


def _needs(row: dict[str, Any]) -> str:
    """Return what a library needs by owner, e.g. `torch, CUDA 13, driver, libnuma.so.1`."""
    needed = row["needed"]
    parts = ["torch"] if "torch" in needed else []
    if "cuda" in needed:
        parts.append(" ".join(["CUDA", *map(str, row["cuda_majors"])]))
    if "driver" in needed:
        parts.append("driver")
    return ", ".join([*parts, *needed.get("other", [])])


@app.command("thin")
def thin_command(
    wheel: Annotated[Path, typer.Argument(help="A published wheel that holds code for several architectures.")],
    arch: Annotated[str, typer.Option("--arch", help="The GPU architecture to keep: 120, 12.0, 90 …")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory for the new wheel.")],
    ptx: Annotated[bool, typer.Option("--ptx", help="Keep PTX also where there is machine code.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cut a published wheel down to one GPU architecture: the same machine code, nothing compiled.

    If a recipe pins exactly this file, its rules are followed (stubs, files left out).
    """
    gpu = Arch.parse(arch)
    known = rules.recipe_of(wheel) if wheel.is_file() else None
    report = thin.thin_wheel(
        wheel,
        output,
        gpu,
        cuda_tag=_cuda_tag(*known) if known else "",
        rules=rules.rules_for(*known, gpu) if known else None,
        ptx=ptx,
    )
    if as_json:
        print_json(report.as_json())
        return
    table = Table("file", "what was done", "before", "after", "kept", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for file in report.files:
        if file.action in ("stub", "left out") and not file.dropped and file.before < 1 << 20:
            continue
        kept = " ".join(f"{code}×{number}" for code, number in thin.code_json(file.kept).items())
        why = f" ({file.reason})" if file.reason else ""
        after = size(file.after) if file.after else "-"
        table.add_row(escape(file.name), escape(file.action + why), size(file.before), after, kept)
    _print_table(table)
    console.print(
        f"{escape(str(report.wheel))}\n{size(report.wheel.stat().st_size)}, cut from {size(report.original_size)}. "
        "It is the publisher's binary cut down: that mends size, not faults; if the published wheel fails for you, "
        "so will this."
    )
    if known is None:
        console.print("No recipe pins this file: libraries left without code were kept, so that imports still work.")


def _cuda_tag(found: recipe.Recipe, version: str) -> str:
    """Return e.g. `cu130` from the stack that holds this version of a recipe."""
    return next((one.cuda_tag for one in stack.load_all().values() if one.recipes.get(found.name) == version), "")
