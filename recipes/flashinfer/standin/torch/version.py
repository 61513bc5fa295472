"""Version of the torch that is stood in for; `cuda` is None, as in a CPU build."""

__version__ = "2.13.0+cpu"
cuda = None
hip = None
