"""Commands that lead to wheels: recipes, archs, plan, fetch, build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from smwheel import gpu, recipe, stack
from smwheel.arch import FIRST_NUMBER_WITH_SUFFIX, GPUS, Arch, known
from smwheel.build.backend import running_on
from smwheel.builder import Wish, build_all, bundle_all, fetch_all, plan_all, take_bundle
from smwheel.cli.app import JsonOption, app, console, interruptible, print_json
from smwheel.errors import PartialError, UsageError
from smwheel.pipeline import Options
from smwheel.progress import Reporter, parse_size
from smwheel.recipe import Strategy

RecipesArgument = Annotated[list[str] | None, typer.Argument(help="Recipes; all of the stack's if none is named.")]
ArchOption = Annotated[
    str | None, typer.Option("--arch", help="GPU architecture: 120, 12.0, 120a, sm_120f; default: this machine's GPU.")
]
StackOption = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Versions that belong together (see `smwheel recipes`), or from:ENV: those of a Python environment.",
    ),
]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Which modules; see `smwheel recipes`.")]
ModulesOption = Annotated[
    str | None, typer.Option("--modules", help="Module name patterns instead of a profile, e.g. 'norm,batch_prefill*'.")
]
ModulesFromOption = Annotated[
    Path | None, typer.Option("--modules-from", help="A server's log or JIT directory: exactly what it asked for.")
]
StrategyOption = Annotated[
    str | None, typer.Option("--strategy", help="auto, compile (from source) or thin (a published wheel cut down).")
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Use only what is in the cache.")]
CudaHomeOption = Annotated[
    Path | None, typer.Option("--cuda-home", help="A CUDA toolkit; default: $CUDA_HOME, else the registry's.")
]
MemoryOption = Annotated[str | None, typer.Option("--memory", help="Memory the build may use, e.g. 24G (GiB).")]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="At most this many compilers at once.")]
WorkOption = Annotated[Path, typer.Option("--work", help="Where builds keep what is finished, to resume.")]
WheelhouseOption = Annotated[Path, typer.Option("--wheelhouse", help="Where finished wheels go.")]


@app.command()
def archs(as_json: JsonOption = False) -> None:
    """List the GPU architectures that are known, and the CUDA release that each needs."""
    rows = [
        {"arch": arch.code, "capability": arch.capability, "cuda": f">={arch.first_cuda}", "gpus": GPUS[arch.number]}
        for arch in known()
    ]
    if as_json:
        print_json({"archs": rows})
        return
    table = Table("arch", "capability", "CUDA", "GPUs", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    console.print(
        f"\nSuffix a (from {FIRST_NUMBER_WITH_SUFFIX['a']}): loads only on exactly that GPU. "
        f"Suffix f (from {FIRST_NUMBER_WITH_SUFFIX['f']}): its family. None: what the recipe chooses for that GPU."
    )


@app.command()
def recipes(as_json: JsonOption = False) -> None:
    """List recipes with their versions and profiles, and the stacks."""
    loaded = [recipe.load(name) for name in recipe.names()]
    stacks = stack.load_all()
    if as_json:
        print_json({
            "recipes": [
                {
                    "name": item.name,
                    "summary": item.summary,
                    "versions": {
                        version: {
                            "strategies": data.strategies,
                            "targets": sorted({code for target in data.targets for code in target.request}),
                            "profiles": {name: profile.summary for name, profile in data.profiles.items()},
                        }
                        for version, data in item.versions.items()
                    },
                }
                for item in loaded
            ],
            "stacks": {name: item.model_dump(exclude={"name"}) for name, item in stacks.items()},
        })  # fmt: skip
        return
    for item in loaded:
        console.print(f"[bold]{item.name}[/]  {item.summary}")
        for version, data in item.versions.items():
            console.print(f"  {version:<10} {', '.join(data.strategies)}")
            for name, profile in data.profiles.items():
                console.print(f"    {name:<8} {profile.summary}{' (default)' if profile.default else ''}")
    console.print()
    for name, known_stack in stacks.items():
        mark = " (default)" if known_stack.default else ""
        versions = ", ".join(f"{package} {version}" for package, version in known_stack.recipes.items())
        console.print(f"[bold]{name}[/]{mark}  CUDA {known_stack.cuda}, torch {known_stack.torch}: {versions}")


@app.command()
def plan(
    recipes: RecipesArgument = None,
    arch: ArchOption = None,
    stack: StackOption = None,
    profile: ProfileOption = None,
    modules: ModulesOption = None,
    modules_from: ModulesFromOption = None,
    strategy: StrategyOption = None,
    cuda_home: CudaHomeOption = None,
    memory: MemoryOption = None,
    jobs: JobsOption = None,
    work: WorkOption = Path(".work"),
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resolve everything and explain it; compile nothing. May fetch sources and make the build environment."""
    chosen = _wish(recipes, arch, stack, strategy, profile=profile, modules=modules, modules_from=modules_from)
    options = Options(offline=offline, cuda_home=cuda_home, memory=parse_size(memory), jobs=jobs, work=work)
    reports = plan_all(chosen, options, Reporter())
    if as_json:
        print_json({"plans": [report.as_json() for report in reports]})
    else:
        for report in reports:
            console.print(report.as_text(), markup=False)
    blocked = [report for report in reports if report.error is not None]
    if blocked:
        error = blocked[0].error
        assert error is not None  # noqa: S101 - selected above
        raise typer.Exit(error.exit_code if len(blocked) == len(reports) else PartialError.exit_code)


@app.command()
def fetch(
    recipes: RecipesArgument = None,
    arch: ArchOption = None,
    stack: StackOption = None,
    strategy: StrategyOption = None,
    cuda_home: CudaHomeOption = None,
    work: WorkOption = Path(".work"),
    bundle: Annotated[Path | None, typer.Option("--bundle", help="Write what was fetched to one file too.")] = None,
    from_bundle: Annotated[
        Path | None, typer.Option("--from-bundle", help="Take everything from such a file, without a network.")
    ] = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring sources, toolchain and build environment into the cache, for building without network afterwards."""
    chosen = _wish(recipes, arch, stack, strategy)
    if from_bundle is not None:
        take_bundle(from_bundle, Reporter())
    offline = offline or from_bundle is not None
    options = Options(offline=offline, ask_tags=not offline, cuda_home=cuda_home, work=work, base_image=running_on())
    with interruptible("what has come is kept, and the same command goes on from there"):
        fetched = fetch_all(chosen, options, Reporter())
        if bundle is not None:
            bundle_all(chosen, options, bundle, Reporter())
    if as_json:
        print_json({"fetched": fetched})


@app.command()
def build(
    recipes: RecipesArgument = None,
    arch: ArchOption = None,
    stack: StackOption = None,
    profile: ProfileOption = None,
    modules: ModulesOption = None,
    modules_from: ModulesFromOption = None,
    strategy: StrategyOption = None,
    cuda_home: CudaHomeOption = None,
    memory: MemoryOption = None,
    jobs: JobsOption = None,
    work: WorkOption = Path(".work"),
    wheelhouse: WheelhouseOption = Path("wheelhouse"),
    allow_network: Annotated[
        bool, typer.Option("--allow-network", help="Let compilers reach the network; recorded in the evidence.")
    ] = False,
    offline: OfflineOption = False,
    backend: Annotated[
        str, typer.Option("--backend", help="host, docker, podman, or auto: in a container where that can be had.")
    ] = "host",
    base_image: Annotated[
        str, typer.Option("--base-image", help="What the container is made on; …@sha256:… pins it.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Build wheels into the wheelhouse: fetch, compile or thin, check."""
    chosen = _wish(recipes, arch, stack, strategy, profile=profile, modules=modules, modules_from=modules_from)
    options = Options(
        offline=offline,
        cuda_home=cuda_home,
        memory=parse_size(memory),
        jobs=jobs,
        allow_network=allow_network,
        work=work,
        wheelhouse=wheelhouse,
        backend=backend,
        base_image=base_image or running_on(),
    )
    with interruptible("what is finished is kept, and the same command goes on from there"):
        result = build_all(chosen, options, Reporter())
    error = result.error()
    if as_json:
        print_json(result.as_json())
        raise typer.Exit(error.exit_code if error else 0)
    console.print(result.as_text(), markup=False)
    if error:
        raise error


def _wish(
    names: list[str] | None,
    arch: str | None,
    stack_name: str | None,
    strategy: str | None,
    *,
    profile: str | None = None,
    modules: str | None = None,
    modules_from: Path | None = None,
) -> Wish:
    chosen_stack = stack.load(stack_name)
    return Wish(
        recipes=tuple(names or chosen_stack.built_by_default),
        arch=Arch.parse(arch) if arch else gpu.the_architecture(),
        stack=chosen_stack,
        profile=profile,
        modules=None if modules is None else _patterns(modules),
        modules_from=modules_from,
        strategy=_strategy(strategy),
    )


def _patterns(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise UsageError(f"{text!r} names no modules", where="--modules", cure="e.g. --modules 'norm,batch_prefill*'")
    return parts


def _strategy(text: str | None) -> Strategy | None:
    match text:
        case None | "auto":
            return None
        case "compile" | "thin":
            return text
        case _:
            raise UsageError(f"there is no strategy {text!r}", where="--strategy", cure="auto, compile or thin")
