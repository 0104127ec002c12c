"""Agreeing on a tensor: collectives behind one contract."""
