"""Data sets, readers, transforms, samplers and splits."""
