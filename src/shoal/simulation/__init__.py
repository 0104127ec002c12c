"""The simulator: a cluster in one process, with faults, from a seed.

Public: users can test their own programs against these faults. `world` runs machines on virtual
time, `network` delays and loses their messages, `faults` crashes and stops them, `checkers` checks
the properties that must hold.
"""
