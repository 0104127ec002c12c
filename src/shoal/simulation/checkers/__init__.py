"""The checkers: properties that must hold in every simulated run."""
