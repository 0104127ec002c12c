"""Sparse tables as a client uses them: any list of keys."""
