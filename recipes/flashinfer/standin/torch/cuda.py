"""No GPU and no driver, as a CPU build of torch reports it."""

from torch._placeholder import getattr_for


def is_available() -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def is_current_stream_capturing() -> bool:
    """Return False."""
    return False


__getattr__ = getattr_for(__name__)
