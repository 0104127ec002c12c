"""View changes: a server promises, refuses and adopts views."""
