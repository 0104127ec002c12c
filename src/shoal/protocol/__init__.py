"""The protocol: state machines of every role, without I/O.

A machine is `handle(event, now) -> [effect]`. Nothing in this package waits, reads a clock, opens a
socket, draws a random number or imports torch. The two shells `node.node` and `simulation.world`
give a machine a network and a clock.
"""
