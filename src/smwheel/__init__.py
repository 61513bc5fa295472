"""smwheel: Python wheels of GPU kernel libraries for one GPU architecture."""

__version__ = "0.1.0"
