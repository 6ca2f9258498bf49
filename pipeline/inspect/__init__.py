"""Looking at a run from a terminal: `python -m pipeline.inspect runs/X`. Needs no torch, model or environment."""
