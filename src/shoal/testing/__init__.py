"""The laws that implementations of our contracts obey, for those of other packages as well.

They need no test framework: each law is a function that raises AssertionError.
"""
