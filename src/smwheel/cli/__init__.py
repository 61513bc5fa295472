"""The command line: one module a group of commands, no logic in any of them."""

from smwheel.cli import build, serve, verify, wheels
from smwheel.cli.app import app, main

__all__ = ["app", "build", "main", "serve", "verify", "wheels"]
