"""Faults in a simulated cluster: schedules and injectors."""
