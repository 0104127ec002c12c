"""Comparisons: every cell of a grid is a job, on real processes or in the simulator."""
