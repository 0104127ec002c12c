"""A server's place in the chains of its shards."""
