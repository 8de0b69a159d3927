"""The backends: primitive kernels and nothing else. Scanning this folder finds them."""
