"""What every name that the stand-in does not define becomes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from collections.abc import Callable, Sequence
from typing import Any


class dtype:  # noqa: N801  # torch's own spelling
    """A data type: its name and its size in bytes."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize
        self.is_floating_point = name.startswith(("float", "bfloat"))
        self.is_complex = name.startswith("complex")

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class Placeholder(type):
    """The type of a class that stands for something of torch: it can be named and derived from, not called."""

    def __getattr__(cls, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(f"{cls.__module__}.{cls.__name__}", name)

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]  # a bare decorator
        if cls.__dict__.get("_stands_in"):
            raise NotImplementedError(f"the stand-in torch has no {cls.__module__}.{cls.__name__}")
        return super().__call__(*args, **kwargs)

    def __or__(cls, _other: object) -> Any:
        return cls

    def __ror__(cls, _other: object) -> Any:
        return cls


def placeholder(module: str, name: str) -> Placeholder:
    """Return a class that stands for `module.name`."""
    return Placeholder(name, (), {"__module__": module, "_stands_in": True})


def getattr_for(module: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a module whose unknown names are placeholders, each made once."""
    made: dict[str, Placeholder] = {}

    def __getattr__(name: str) -> object:  # noqa: N807  # it becomes the module's
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return made.setdefault(name, placeholder(module, name))

    return __getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of torch that is no file here: an empty module full of placeholders."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for `torch.…`, None for anything else."""
        if not name.startswith("torch."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> None:
        """Leave the making of the module to the import system."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module its placeholders."""
        module.__getattr__ = getattr_for(module.__name__)  # type: ignore[method-assign]
