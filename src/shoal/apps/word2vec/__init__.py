"""`shoal train word2vec`: word embeddings, from text.

corpus.py     text -> numbers of words     model.py    skip-gram and CBOW on local rows, compiled
tokens.py     what a word is               detect.py   whether a text is prose or tokens
numbering.py  words -> numbers
worker.py     the worker process           command.py  the run
vectors.py    files for gensim; analogies and similarities
"""
