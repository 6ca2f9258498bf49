"""`python -m pipeline.report runs/X`: a run as one HTML page that needs no server and no network."""
