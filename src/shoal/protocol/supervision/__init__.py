"""What becomes of a run when its processes end, or are declared dead."""
