"""What runs, in which order, with which settings."""

VERSION = "0.1.0"
