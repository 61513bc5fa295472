"""Proof that what was built runs: kernels on a GPU, a server, and that a server compiles nothing."""
