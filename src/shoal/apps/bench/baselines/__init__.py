"""Ceilings and peers, beside which the suites are measured."""
