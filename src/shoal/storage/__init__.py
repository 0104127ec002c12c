"""What runs leave on disk."""
