"""Which modules there are: upstream's default set, and any other that can be made from its name alone."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from generator import package
from generator.request import GeneratorError, Request

# The arguments of upstream's `gen_all_modules`, in order: keys of its own default configuration.
_LISTS = (
    "f16_dtype",
    "f8_dtype",
    "fa2_head_dim",
    "fa3_head_dim",
    "use_sliding_window",
    "use_logits_soft_cap",
)
_SWITCHES = ("add_comm", "add_gemma", "add_oai_oss", "add_moe", "add_act", "add_misc", "add_xqa")


def default_set(aot: ModuleType) -> dict[str, Any]:
    """Return upstream's ahead-of-time set for the architecture in the environment: name → spec."""
    configuration = aot.get_default_config()
    specs = aot.gen_all_modules(
        *(configuration[name] for name in _LISTS),
        aot.detect_sm_capabilities(),
        *(configuration[name] for name in _SWITCHES),
    )
    return {spec.name: spec for spec in specs}


class ByName:
    """Makes specs from their names by the recipe's rules.

    A rule is `{name, call, with}`: `name` is the module's name with `{argument}` where upstream's generator puts
    an argument, `call` the generator, `with` its arguments that the name does not tell. A spec whose name is not
    the one asked for is refused, so a rule cannot make something else.
    """

    def __init__(self, request: Request) -> None:
        self._rules = [(_pattern(rule["name"]), rule) for rule in request.options.get("by_name", ())]

    def make(self, name: str) -> Any | None:
        """Return the spec of this name, or None if no rule makes it."""
        for pattern, rule in self._rules:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            try:
                spec = _generate(rule, match.groupdict())
            except (AssertionError, KeyError, ValueError, RuntimeError):  # upstream refuses the combination
                continue
            if spec.name == name:
                return spec
        return None


def _generate(rule: dict[str, Any], parts: dict[str, str]) -> Any:
    generate = package.function(rule["call"])
    arguments = {key: _value(key, value) for key, value in (parts | rule.get("with", {})).items()}
    unknown = set(arguments) - set(inspect.signature(generate).parameters)
    if unknown:
        raise GeneratorError(f"{rule['call']} takes no argument {', '.join(sorted(unknown))}")
    return generate(**arguments)


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    pieces = [f"(?P<{part}>[A-Za-z0-9]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)]
    return re.compile("".join(pieces))


def _value(argument: str, text: object) -> Any:
    """Return what a part of a name means as an argument: a data type, a number, a truth value, or text."""
    if not isinstance(text, str):
        return text
    if "dtype" in argument:
        names = package.function("flashinfer.jit.utils:filename_safe_dtype_map")
        meant = [dtype for dtype, short in names.items() if short == text]
        if not meant:
            raise ValueError(f"{text!r} is no data type")
        return meant[0]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() else text
