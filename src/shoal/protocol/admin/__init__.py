"""What nodes ask and say that are no members."""
