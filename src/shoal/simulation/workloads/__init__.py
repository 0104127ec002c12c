"""The workloads of simulated workers."""
