"""The backends: primitive kernels and nothing else. The modules of this folder are found by scanning."""
