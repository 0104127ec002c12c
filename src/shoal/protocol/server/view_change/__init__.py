"""How a server promises, refuses and adopts views."""
