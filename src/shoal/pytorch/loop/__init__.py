"""What a user's training loop does to a model, taken in by `shoal.Optimizer`."""
