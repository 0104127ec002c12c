"""Jobs, comparisons of jobs, their simulated time, and the trust in files that describe them."""
