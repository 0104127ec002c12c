"""The supervision of a run whose processes may end, or be declared dead."""
