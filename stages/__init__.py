"""One script a stage; each is `run(context)` plus a main for the launcher."""
