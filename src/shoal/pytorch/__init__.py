"""PyTorch modules and optimizers on top of a client."""
