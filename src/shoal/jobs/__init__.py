"""Getting work onto machines. So far: what a job is (`spec`)."""
