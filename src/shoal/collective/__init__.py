"""What workers exchange among themselves: sums of tensors, and values with neighbours."""
