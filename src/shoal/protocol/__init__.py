"""Who says what, when: the machines of every role, sans I/O.

A machine is `handle(event, now) -> [effect]`. Nothing in this package waits, reads a clock, opens
a socket, draws a random number or imports torch; `runtime.node` and `sim.world` are the two shells
that give it a network and a clock.
"""
