"""Comparable versions."""

from packaging.version import Version as TorchVersion

from torch.version import __version__

__all__ = ["TorchVersion", "__version__"]
