"""Who starts processes: engines, and what the started processes do."""
