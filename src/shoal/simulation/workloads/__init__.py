"""What the workers of a simulated cluster do."""
