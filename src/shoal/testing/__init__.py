"""Conformance suites: the laws of Shoal's contracts, for implementations in other packages too.

They need no test framework: each law is a function that raises AssertionError.
"""
