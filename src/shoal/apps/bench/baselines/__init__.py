"""What suites are measured beside: ceilings and peers."""
