"""Replication: repeats what other servers do, and moves rows between servers."""
