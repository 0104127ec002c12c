"""Leases of batches: the ledger of a worker group, those of all groups, and their log."""
