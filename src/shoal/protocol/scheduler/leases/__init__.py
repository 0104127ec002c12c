"""Leases of batches: the ledger of a worker group, and the lease log."""
