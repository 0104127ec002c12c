"""Dense tables: key k is row k."""
