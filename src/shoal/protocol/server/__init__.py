"""The server: admission, rounds, the wait queue, checkpoints and replication."""
