"""What a server knows: its replicas, the requests it has seen, and the pushes of open rounds."""
