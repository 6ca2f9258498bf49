"""What runs, in what order, with which settings."""
