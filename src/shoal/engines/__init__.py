"""Engines, which start the processes of a run, and the programs of those processes."""
