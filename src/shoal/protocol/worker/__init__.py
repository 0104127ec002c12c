"""The worker's machine."""
