"""The scheduler's machine."""
