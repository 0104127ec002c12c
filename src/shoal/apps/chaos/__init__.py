"""`shoal chaos`: a job with faults in its processes, and the fate of every push."""
