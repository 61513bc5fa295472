"""The command line: one module a group of commands, no logic in any of them."""

from smwheel.cli import build, container, costs, doctor, serve, verify, wheels
from smwheel.cli.app import app, main

__all__ = ["app", "build", "container", "costs", "doctor", "main", "serve", "verify", "wheels"]
