"""The application object, how results are printed, and how errors end the program."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from smwheel import __version__
from smwheel.errors import SmwheelError, SystemNeedError

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended (128 and the signal's number)."""

app = typer.Typer(
    name="smwheel",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Python wheels of GPU kernel libraries for one GPU architecture, built and proven.",
)

console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, no text.")]


def print_json(value: Any) -> None:
    """Print one JSON document on stdout (keys in the order given, non-ASCII kept)."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def fail(error: SmwheelError, *, as_json: bool = False) -> NoReturn:
    """Print an error (what, where, what to do) on stderr, or as JSON on stdout, and exit with its code."""
    if as_json:
        print_json(error.as_json())
    else:
        place = f"{error.where}: " if error.where else ""
        stderr.print(f"[bold red]error[/]: {escape(place + error.message)}")
        if error.cure:
            stderr.print(f"[bold]to do[/]: {escape(error.cure)}")
    raise SystemExit(error.exit_code)


@contextmanager
def interruptible(kept: str) -> Iterator[None]:
    """End the program with 130 and one line when Ctrl-C comes in the block; `kept` says what is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        stderr.print(f"[bold]stopped[/]: {escape(kept)}")
        raise typer.Exit(INTERRUPTED) from None


def _version(value: bool) -> None:
    if value:
        console.print(f"smwheel {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Python wheels of GPU kernel libraries for one GPU architecture, built and proven."""


def main() -> None:
    """Run the command line; the entry point of the `smwheel` script."""
    as_json = "--json" in sys.argv
    try:
        app()
    except SmwheelError as error:
        fail(error, as_json=as_json)
    except OSError as error:
        place = str(error.filename or "")
        problem = SystemNeedError(
            error.strerror or str(error), where=place, cure="look at that path: its kind, its permissions, free space"
        )
        fail(problem, as_json=as_json)
    except Exception:  # noqa: BLE001  # the last resort: our fault, said so, with all that helps to mend it
        traceback.print_exc()
        stderr.print("[bold red]error[/]: this is a fault in smwheel itself; please report the lines above")
        raise SystemExit(70) from None
