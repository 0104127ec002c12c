"""`shoal train word2vec`: vectors of words, from text.

corpus.py     text -> words by number      model.py    skip-gram and CBOW on local rows, compiled
tokens.py     what a word is               detect.py   whether a text is prose or tokens
numbering.py  words -> numbers
worker.py     a worker's process           command.py  the run
vectors.py    files that gensim reads; analogies and similarities
"""
