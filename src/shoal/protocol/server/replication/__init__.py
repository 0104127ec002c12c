"""Chain replication, state transfer and takeover on a server."""
