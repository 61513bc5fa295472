"""Which backend a build runs on: the host, or a container engine with a base image that is to be had."""

from __future__ import annotations

import os

from smwheel.build import engine as engines
from smwheel.build.builderimage import DEFAULT_BASE, LOCAL_BASE
from smwheel.build.container import BASE_VARIABLE, Backend
from smwheel.build.engine import Engine
from smwheel.errors import ContainerError, UsageError
from smwheel.pipeline import Options
from smwheel.progress import Reporter


def choose(options: Options, reporter: Reporter) -> Backend | None:
    """Return the container backend that the options ask for, or None for the host.

    `auto` takes the first engine that answers and has, or can pull, a base image; it says which it took and why.

    Raises:
        UsageError: there is no such backend, or a base image is named for the host.
        ContainerError: the engine named does not answer, or its base image is not to be had.
    """
    match options.backend:
        case "host":
            if options.base_image and not running_on():
                raise UsageError(
                    "the host has no base image", where="--base-image", cure="add --backend docker, podman or auto"
                )
            return None
        case "docker" | "podman":
            backend = _backend(engines.find(options.backend), options)
            reporter.stage("backend", str(backend))
            return backend
        case "auto":
            return _auto(options, reporter)
        case _:
            raise UsageError(
                f"there is no backend {options.backend!r}", where="--backend", cure="host, docker, podman or auto"
            )


def running_on() -> str:
    """Return the digest of the base image that this program runs on in a container of ours; empty on the host."""
    return os.environ.get(BASE_VARIABLE, "")


def _auto(options: Options, reporter: Reporter) -> Backend | None:
    reasons = []
    for name in engines.ENGINES:
        try:
            backend = _backend(engines.find(name), options)
        except ContainerError as error:
            reasons.append(f"{name}: {error.message}")
        else:
            reporter.stage("backend", f"{backend}: it answers, and the base image is to be had")
            return backend
    reporter.stage("backend", f"host ({'; '.join(reasons)})")
    return None


def _backend(engine: Engine, options: Options) -> Backend:
    """Return the engine with the base image asked for; if none is, the one made here, else the default one."""
    reference = options.base_image
    if not reference:
        reference = LOCAL_BASE if engine.image(LOCAL_BASE) else DEFAULT_BASE
    return Backend(engine, engine.base(reference))
