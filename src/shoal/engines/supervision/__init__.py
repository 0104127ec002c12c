"""What becomes of a run when its processes start, end, or do not join."""
