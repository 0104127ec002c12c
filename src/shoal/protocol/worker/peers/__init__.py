"""Exchanges between workers: sums around a ring, and values with neighbours."""
