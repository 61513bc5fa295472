"""Read and rewrite wheels: the zip and its metadata, shared objects, GPU code."""
