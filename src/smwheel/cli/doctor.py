"""The command that says what will not work in an environment, and why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from smwheel.arch import Arch
from smwheel.cli.app import JsonOption, app, console, print_json
from smwheel.doctor import Report, environment, examine, machine
from smwheel.doctor.finding import Level
from smwheel.errors import UsageError


@app.command()
def doctor(
    python: Annotated[
        Path | None,
        typer.Option(
            "--python",
            help="The environment's interpreter, by path or by name; default: that of the active environment "
            "(VIRTUAL_ENV, CONDA_PREFIX), else the first python3 on PATH.",
        ),
    ] = None,
    env: Annotated[Path | None, typer.Option("--env", help="The environment's directory, instead.")] = None,
    wheels: Annotated[
        list[Path] | None, typer.Option("--wheel", help="Judge this wheel as if it were installed there; repeatable.")
    ] = None,
    arch: Annotated[
        list[str] | None, typer.Option("--arch", help="Judge for this GPU, e.g. 120; default: this machine's GPUs.")
    ] = None,
    imports: Annotated[
        bool, typer.Option("--import", help="Try the real imports too, in a child process (seconds).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what will not work in a Python environment on this machine, why, and what cures it.

    Nothing is changed, nothing is built, and no GPU is needed.

    Exit 0: no fault was found; 2: the command line makes no sense; 4: the architecture is not known; 19: a fault
    was found.
    """
    if python is not None and env is not None:
        raise UsageError("--python and --env both name the environment", cure="give --python or --env, not both")
    if len(arch or []) > 1:
        raise UsageError(
            f"--arch was given {len(arch or [])} times", cure="give one GPU, and call doctor again for another"
        )
    for path in wheels or []:
        if not path.is_file():
            raise UsageError("there is no such wheel", where=str(path), cure="give the path of a .whl file")
    report = examine(
        machine.look(),
        environment.read(_interpreter(python) if python else env or environment.default()),
        wheels=tuple(wheels or ()),
        asked=Arch.parse(arch[0]) if arch else None,
        imports=imports,
    )
    if as_json:
        print_json(report.as_json())
    else:
        _show(report)
    raise typer.Exit(report.exit_code)


def _interpreter(given: Path) -> Path:
    """Return an interpreter's file; a bare name is looked up on PATH.

    Raises:
        UsageError: there is none.
    """
    if given.exists():
        return given
    found = shutil.which(given) if len(given.parts) == 1 else None
    if found is None:
        raise UsageError("there is no such interpreter", where=str(given), cure="check the path given with --python")
    return Path(found)


def _show(report: Report) -> None:
    console.print(f"[bold]{escape(report.case.environment.title)}[/]")
    if not report.findings:
        console.print(f"[green]{escape(report.sentence)}[/]")
    told: dict[str, int] = {}
    for number, one in enumerate(report.findings, start=1):
        colour = "red" if one.level is Level.FAULT else "yellow"
        mark = "" if one.level is Level.FAULT else "Warning: "
        console.print(f"\n{number}. [{colour}]{mark}{escape(one.sentence)}[/]  \\[{one.code}]")
        console.print(f"   why    {escape(one.why)}")
        before = told.setdefault(one.cure, number)
        if before == number:
            console.print(f"   to do  [bold]{escape(one.cure)}[/]")
        else:
            console.print(f"   to do  nothing more: what is to do for {before} cures this too")
    if report.fine:
        console.print("\nFine:")
        for text in report.fine:
            console.print(f"  {escape(text)}")
    if report.unseen:
        console.print("\nCould not be looked at:")
        for text in report.unseen:
            console.print(f"  {escape(text)}")
