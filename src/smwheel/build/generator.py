"""Our side of the generator protocol (`docs/generator-protocol.md`)."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from smwheel.build.sandbox import BUILD_ID, Sandbox, die_with_parent
from smwheel.errors import BuildError
from smwheel.tomlfile import Strict

PROTOCOL = 1
R = TypeVar("R", bound=Strict)


class GeneratedUnit(Strict):
    """One unit of the response to `modules`."""

    id: str
    module: str
    family: str
    kind: Literal["cuda", "cxx", "link", "devicelink", "other"]
    source: str = ""
    source_path: str = ""
    command: list[str] = Field(min_length=1)
    inputs: list[str] = []
    output: str


class GeneratedModule(Strict):
    """One module of the response to `modules`."""

    name: str
    family: str
    library: str
    units: list[str] = Field(min_length=1)


class Left(Strict):
    """A module left out, with the reason."""

    name: str
    reason: str


class ModulesResponse(Strict):
    """The response to `modules`."""

    protocol: Literal[1]
    modules: list[GeneratedModule]
    units: list[GeneratedUnit]
    excluded: list[Left] = []
    missing: list[str] = []
    notes: list[str] = []


class ProductFile(Strict):
    """One file of a product: its path in the wheel, and its text or where it comes from."""

    path: str
    text: str | None = None
    origin: str | None = Field(default=None, alias="from")
    dist_info: str = Field(default="", description="directory under the dist-info that the file goes to")


class Product(Strict):
    """One wheel to write."""

    distribution: str
    pure: bool
    summary: str
    license: str
    requires_python: str = ">=3.10"
    requires: list[str] = []
    entry_points: dict[str, dict[str, str]] = {}
    files: list[ProductFile]


class ProductsResponse(Strict):
    """The response to `products`."""

    protocol: Literal[1]
    products: list[Product]


@dataclass(frozen=True)
class Generator:
    """A recipe's generator, ready to be asked."""

    script: Path
    python: Path
    environment: dict[str, str]
    sandbox: Sandbox
    work: Path
    build_id: str
    log: Path

    def modules(self, request: dict[str, Any]) -> ModulesResponse:
        """Ask which modules and units there are.

        Raises:
            BuildError: the generator failed, or its response breaks the protocol.
        """
        response = self._ask("modules", request, ModulesResponse)
        _check(response, str(self.script))
        return response

    def products(self, request: dict[str, Any]) -> ProductsResponse:
        """Ask what the wheels hold.

        Raises:
            BuildError: the generator failed, or its response breaks the protocol.
        """
        return self._ask("products", request, ProductsResponse)

    def _ask(self, action: str, request: dict[str, Any], model: type[R]) -> R:
        asked, answered = self.work / f"{action}.request.json", self.work / f"{action}.response.json"
        asked.write_text(json.dumps(request | {"protocol": PROTOCOL, "action": action}, indent=1), encoding="utf-8")
        answered.unlink(missing_ok=True)
        inside = self.sandbox.inside
        command = self.sandbox.wrap(
            [inside(self.python), inside(self.script), inside(asked), inside(answered)], cwd=self.work
        )
        done = subprocess.run(
            command,
            env=self.environment | {BUILD_ID: self.build_id},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=die_with_parent,
        )
        with self.log.open("a", encoding="utf-8") as sink:
            sink.write(done.stdout + done.stderr)
        if done.returncode != 0 or not answered.is_file():
            last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
            raise BuildError(f"the generator failed: {last}", where=str(self.script), cure=f"read {self.log}")
        try:
            return model.model_validate_json(answered.read_bytes())
        except ValidationError as error:
            raise BuildError(
                f"the generator's response breaks the protocol: {error.errors()[0]}", where=str(self.script)
            ) from error


def _check(response: ModulesResponse, where: str) -> None:
    """Refuse a response whose parts do not fit each other."""
    for what, names in (
        ("unit", [unit.id for unit in response.units]),
        ("output", [unit.output for unit in response.units]),
        ("module", [module.name for module in response.modules]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise BuildError(f"the generator names {what} {twice[0]} twice", where=where)
    units = {unit.id: unit for unit in response.units}
    outputs = {unit.output for unit in response.units}
    for module in response.modules:
        unknown = [name for name in module.units if name not in units]
        if unknown:
            raise BuildError(f"module {module.name} names unit {unknown[0]}, which is not there", where=where)
        if units[module.units[-1]].output != module.library:
            raise BuildError(f"the last unit of module {module.name} does not make its library", where=where)
    for unit in response.units:
        if any("\n" in word for word in unit.command):
            raise BuildError(f"the command of unit {unit.id} holds a line break", where=where)
        absent = [path for path in unit.inputs if path not in outputs]
        if absent:
            raise BuildError(f"unit {unit.id} wants {absent[0]}, which no unit makes", where=where)
