"""`shoal train`: a job, its workers and the models that it trains."""
