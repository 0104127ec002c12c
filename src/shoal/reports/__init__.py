"""Reading the event log: tables, live progress, summaries."""
