"""Benchmark suites, one module each."""
