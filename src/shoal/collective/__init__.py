"""Allreduce of tensors: the contract, the arithmetic, and process groups of torch."""
