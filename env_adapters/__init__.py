"""Interactive text environments. Imports nothing of ours outside this package."""
