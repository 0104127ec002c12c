"""Complete programs, and the only room that knows a data set's name: readers of file formats,
named data sets, the transforms that go with them, and the programs that train on them.
"""
