"""Chain replication between servers: operations go down a chain, acknowledgements come back."""
