"""Commands about images and proof: image, rebuild."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from smwheel.arch import Arch
from smwheel.cli.app import JsonOption, app, console, print_json
from smwheel.cli.build import JobsOption, MemoryOption, OfflineOption, WheelhouseOption, WorkOption
from smwheel.image import write_image
from smwheel.pipeline import Options
from smwheel.progress import Reporter, parse_size, size
from smwheel.rebuild import rebuild
from smwheel.wheelhouse import Wheelhouse


@app.command("image")
def image_command(
    arch: Annotated[str | None, typer.Option("--arch", help="Wheels for this GPU architecture: 120, 90 …")] = None,
    wheelhouse: WheelhouseOption = Path("wheelhouse"),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write: an OCI layout that `docker load` takes too.")
    ] = Path("wheels-image.tar"),
    tag: Annotated[str, typer.Option("--tag", help="The name that it is loaded as.")] = "smwheel-wheels:latest",
    as_json: JsonOption = False,
) -> None:
    """Write an image that holds nothing but the wheels of one architecture; needs no container engine."""
    made = write_image(Wheelhouse(wheelhouse), Arch.parse(arch) if arch else None, output, tag)
    if as_json:
        print_json(made.as_json())
        return
    for name in made.wheels:
        console.print(f"  {escape(name)}")
    console.print(f"{escape(str(made.path))}  {size(made.size)}  {made.digest}")
    console.print(f"load it with   docker load --input {escape(str(made.path))}   as {escape(made.tag)}")


@app.command("rebuild")
def rebuild_command(
    wheel: Annotated[Path, typer.Argument(help="A wheel that smwheel made.")],
    backend: Annotated[
        str, typer.Option("--backend", help="The engine for a wheel made on a base image: docker or podman.")
    ] = "docker",
    recipe: Annotated[str, typer.Option("--recipe", help="The recipe's directory, if it is none of smwheel's.")] = "",
    memory: MemoryOption = None,
    jobs: JobsOption = None,
    work: WorkOption = Path(".work"),
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a wheel again from the plan inside it, on the same base image if it had one, and compare the bytes."""
    options = Options(offline=offline, memory=parse_size(memory), jobs=jobs, work=work, backend=backend)
    proven = rebuild(wheel, options, Reporter(), recipe=recipe)
    if as_json:
        print_json(proven.as_json())
        return
    where = f"on base {proven.base_image}" if proven.base_image else "on this host"
    console.print(f"{escape(proven.wheel)}: made again {where}, byte for byte the same\nsha256 {proven.sha256}")
