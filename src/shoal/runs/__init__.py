"""The life of a run on this machine: its options, its processes, its end; and jobs in files."""
