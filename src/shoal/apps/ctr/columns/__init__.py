"""Rows with named columns: CSV, Parquet, tables in memory."""
