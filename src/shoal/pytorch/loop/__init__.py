"""The changes that a user's training loop makes to a model, as `shoal.Optimizer` finds them."""
