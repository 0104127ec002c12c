"""The shell of a machine: a transport, a clock, a disk and a thread."""
