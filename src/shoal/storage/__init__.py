"""The files that runs leave on disk."""
