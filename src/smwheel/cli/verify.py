"""The command that judges wheels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from smwheel.cli.app import JsonOption, app, console, print_json, stderr
from smwheel.errors import UsageError
from smwheel.verify import Imports, Status, Verdict, judge

_MARKS = {
    Status.PASSED: "[green]passed[/]  ",
    Status.FAILED: "[red]FAILED[/]  ",
    Status.NOT_MADE: "[yellow]not made[/]",
}


@app.command()
def verify(
    wheels: Annotated[list[Path], typer.Argument(help="Wheels to judge.")],
    recipe: Annotated[str, typer.Option("--recipe", help="Judge by this recipe; default: the plan inside.")] = "",
    arch: Annotated[str, typer.Option("--arch", help="GPU architecture; default: the plan inside.")] = "",
    stack: Annotated[str, typer.Option("--stack", help="Versions to fit; default: the plan inside.")] = "",
    against: Annotated[
        Path | None, typer.Option("--against", help="The published wheel that this one was cut from.")
    ] = None,
    imports: Annotated[
        bool, typer.Option("--import", help="Import it too, in an environment with torch (gigabytes; sizes first).")
    ] = False,
    python: Annotated[
        Path | None, typer.Option("--python", help="With --import: an interpreter that has torch, instead.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Judge by this machine's GPUs too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge finished wheels: exit 0 only if every check was made and passed."""
    if against is not None and len(wheels) != 1:
        raise UsageError("--against compares one wheel with its original", cure="give one wheel")
    if against is not None and not against.is_file():
        raise UsageError("there is no such file", where=f"--against {against}", cure="name the published wheel")
    if python is not None and not imports:
        raise UsageError("--python goes with --import", cure="add --import")
    verdicts = []
    for path in wheels:
        verdict = judge(
            path,
            recipe_name=recipe,
            arch=arch,
            stack_name=stack,
            against=against,
            imports=Imports(python, stderr.print) if imports else None,
            live=live,
        )
        verdicts.append(verdict)
        if not as_json:
            _show(verdict)
    if as_json:
        print_json({"wheels": [verdict.as_json() for verdict in verdicts]})
    codes = [error.exit_code for verdict in verdicts if (error := verdict.error())]
    if codes:
        raise typer.Exit(min(codes))  # failed (13) before incomplete (14)


def _show(verdict: Verdict) -> None:
    console.print(f"[bold]{escape(verdict.wheel)}[/]")
    for result in verdict.results:
        console.print(f"  {result.code} {_MARKS[result.status]} {escape(result.means)}")
        for problem in result.problems:
            console.print(f"       [red]{escape(str(problem))}[/]")
            if problem.cure:
                console.print(f"       to do: {escape(problem.cure)}")
        if result.status is Status.FAILED and not all(problem.cure for problem in result.problems):
            console.print(f"       to do: {escape(result.cure)}")
        for note in result.notes:
            console.print(f"       [dim]{escape(note)}[/]")
        if result.reason:
            console.print(f"       {escape(result.reason)}")
    error = verdict.error()
    if error is None:
        console.print(f"[green]proven: {verdict.level}[/]")
    else:
        counts = ", ".join(f"{len(verdict.having(status))} {status}" for status in Status if verdict.having(status))
        console.print(
            f"[red]not proven[/] ({counts})" if verdict.level == "none" else f"proven: {verdict.level} ({counts})"
        )
