"""Complete programs: the commands of `shoal`, and the applications that train on data."""
