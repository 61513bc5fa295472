"""Decorators that register operators: here they return the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._placeholder import getattr_for


class _Operator:
    """A function that was registered as an operator; its further registrations are ignored."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function."""
        return function


def custom_op(*_args: object, **_kwargs: object) -> Callable[[Callable[..., Any]], _Operator]:
    """Return a decorator that makes an operator of a function."""
    return _Operator


def register_fake(*_args: object, **_kwargs: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that returns the function."""
    return lambda function: function


__getattr__ = getattr_for(__name__)
