"""A process's part in a run: tensors in and out of tables, sums, barriers and leases."""
