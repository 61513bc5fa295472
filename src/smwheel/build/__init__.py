"""Turning a plan into wheels: the sandbox, the generator protocol, ninja."""
