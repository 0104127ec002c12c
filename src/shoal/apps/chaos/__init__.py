"""`shoal chaos`: a job whose processes are killed, and proof of what became of every push."""
