"""FlashInfer's generator: which modules there are, how upstream compiles them, and the wheels made of them.

Speaks docs/generator-protocol.md: `python generate.py REQUEST.json RESPONSE.json`. What differs between versions
and architectures (names, groups, exceptions) is in `recipe.toml`; what upstream knows (sources, flags, names) is
asked of upstream's own functions, so nothing of it is written down here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generator import catalogue, package, products, selection, times, units
from generator.request import GeneratorError, Request


def modules(request: Request) -> dict[str, Any]:
    """Return the response to `modules`."""
    package.set_environment(request)
    aot = package.load(request)
    for rule in request.options.get("stubs", ()):
        package.stub(rule["call"], rule["module"])
    chosen = selection.select(request, catalogue.default_set(aot))
    described = [units.describe(request, name, spec) for name, spec in chosen.specs.items()]
    times.keep(request.work, [unit["source_path"] for _, own in described for unit in own])
    return {
        "protocol": 1,
        "modules": [module for module, _ in described],
        "units": [unit for _, own in described for unit in own],
        "excluded": [{"name": name, "reason": reason} for name, reason in chosen.excluded.items()],
        "missing": chosen.missing,
        "notes": _notes(request, chosen),
    }


def _notes(request: Request, chosen: selection.Selection) -> list[str]:
    """Return the recipe's notes for this architecture that concern what was chosen or left out."""
    if request.modules_from is not None and not chosen.specs:
        return ["give the log of a server that compiled FlashInfer's modules, or its directory `cached_ops`"]
    return [
        note["text"]
        for note in request.options.get("notes", ())
        if request.arch.code in note["arch"] and note.get("unless_module") not in chosen.specs
    ]


ACTIONS = {"modules": modules, "products": products.products}


def respond(path: Path) -> dict[str, Any]:
    """Return the response to the request in a file.

    Raises:
        GeneratorError: the request cannot be answered; the text is for the user.

    """
    request = Request.read(path)
    if request.action not in ACTIONS:
        raise GeneratorError(f"there is no action {request.action!r}")
    return ACTIONS[request.action](request)


def main(arguments: list[str]) -> int:
    """Read the request, write the response atomically; return the exit status."""
    request_path, response_path = (Path(argument).resolve() for argument in arguments)
    try:
        response = respond(request_path)
    except GeneratorError as error:
        sys.stderr.write(f"{error}\n")  # the protocol: the last line is what the user is told
        return 1
    temporary = response_path.with_suffix(".partial")
    temporary.write_text(json.dumps(response))
    temporary.replace(response_path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
