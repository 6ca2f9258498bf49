"""Comparisons: the same world, the same seeds, several algorithms or settings. `python -m pipeline.compare`."""
