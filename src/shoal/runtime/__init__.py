"""The room with threads, clocks, sockets and disk: it drives the machines of `shoal.protocol` on a
real host. Everything that waits, sleeps, opens a file or reads a clock is here, so that the same
machines run unchanged in `shoal.sim`, which has none of these.
"""
