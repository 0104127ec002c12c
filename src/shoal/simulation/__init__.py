"""The same cluster in one process, from a seed.

Public: users test their own programs against the faults here. `world` runs machines in virtual
time, `network` is what may go wrong between them, `checkers` says what must not.
"""
