"""Commands about serving: which modules a server asks for, and that it compiles none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smwheel import recipe, stack
from smwheel import record as recording
from smwheel.cli.app import JsonOption, app, console, print_json
from smwheel.errors import UsageError
from smwheel.smoke import nojit as hiding

smoke = typer.Typer(no_args_is_help=True, help="Prove that what was built runs.")
app.add_typer(smoke, name="smoke")

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
RecipeOption = Annotated[str, typer.Option("--recipe", help="Whose modules.")]
PythonOption = Annotated[Path | None, typer.Option("--python", help="Python of the environment that serves.")]


@app.command(context_settings=PASS_ON)
def record(
    context: typer.Context,
    recipe_name: RecipeOption,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the set file goes.")] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the set.")] = "recorded",
    dry: Annotated[bool, typer.Option("--dry", help="Propose from a model's configuration; run nothing.")] = False,
    model: Annotated[Path | None, typer.Option("--model", help="(--dry) A model's config.json.")] = None,
    tensor_parallel: Annotated[int, typer.Option("--tp", min=1, help="(--dry) Tensor-parallel size.")] = 1,
    speculative: Annotated[str, typer.Option("--speculative", help="(--dry) E.g. EAGLE3.")] = "",
    board: Annotated[str, typer.Option("--board", help="(--dry) The GPU that serves.")] = "rtx-pro-6000",
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the set of modules that a server asks for: `smwheel record --recipe R -o set.json -- COMMAND…`."""
    if dry:
        if model is None or python is None:
            raise UsageError("--dry needs --model and --python", where="record", cure="name both")
        document = recording.propose(
            python,
            recipe_name=recipe_name,
            model=model,
            tensor_parallel=tensor_parallel,
            speculative=speculative,
            board=board,
        )
        sentence = f"{len(document['specs'])} modules proposed: this is no recording of a server"
    else:
        if not context.args:
            raise UsageError("there is no command to record", where="record", cure="put it behind --")
        made = recording.record(context.args, recipe_name=recipe_name, name=name)
        document, sentence = made.document, made.sentence
    if output is not None:
        recording.write(document, output)
        sentence += f"; written to {output}"
    if as_json or output is None:
        print_json(document)
    if not as_json:
        console.print(sentence, markup=False, soft_wrap=True)


@smoke.command(context_settings=PASS_ON)
def nojit(
    context: typer.Context,
    recipe_name: RecipeOption,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a command with every compiler hidden and list who asked for one.

    Without a command, the recipe's own check runs under --python: it asks for every module that was prebuilt.
    """
    command = context.args or check_command(recipe_name, python)
    outcome = hiding.run(command, hiding.load(recipe_name))
    if as_json:
        print_json(outcome.as_json())
    else:
        console.print(outcome.as_text(), markup=False, soft_wrap=True)
    outcome.raise_for_attempts()


def check_command(recipe_name: str, python: Path | None) -> list[str]:
    """Return the command of the recipe's own check, for the version that the default stack names.

    Raises:
        UsageError: no --python was given, or the recipe has no check.
    """
    chosen = recipe.load(recipe_name)
    version = stack.load(None).recipes.get(recipe_name) or next(iter(chosen.versions))
    check = chosen.version(version).check
    if python is None or not check:
        raise UsageError(
            "there is no command to run", where="smoke nojit", cure="give --python, or a command behind --"
        )
    return [str(python), str(chosen.directory / check)]
