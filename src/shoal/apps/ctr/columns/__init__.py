"""Rows with named columns: CSV, Parquet, tables in memory.

keys.py      the rule (column, value) -> key, public as `shoal.ctr.key`
arrays.py    whole columns of pyarrow, as texts and numbers
values.py    the texts that a run has seen, with their keys
encoding.py  the columns in use -> batches of keys
files.py     CSV and Parquet files, in parts
reader.py    files -> batches of keys
frames.py    tables of callers -> batches of keys
doubts.py    warnings of columns that are no features as they are
names.py     the column and the value of each key in an exported table
"""
