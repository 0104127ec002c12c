"""`shoal train ctr`: click-through rates from sparse features, at any number of keys.

readers.py    lines of text -> batches of keys and values
columns/      rows with named columns -> batches of keys
models.py     logistic regression, factorisation machine, DeepFM
spec.py       the options
worker.py     the worker process
"""
