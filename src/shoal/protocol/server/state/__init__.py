"""The state of a server: its replicas, the requests it has seen, and the pushes of open rounds."""
