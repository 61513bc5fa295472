"""Utilities; only `cpp_extension` has content."""

from torch._placeholder import getattr_for
from torch.utils import cpp_extension

__getattr__ = getattr_for(__name__)
__all__ = ["cpp_extension"]
