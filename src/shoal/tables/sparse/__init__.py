"""Sparse tables: a row for any 64-bit key, created when it is first named."""
