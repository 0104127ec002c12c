"""Pushes: what every push goes through before it leaves its worker, real or simulated.

`Door.ready` looks at the values of an exchange once: it refuses those that are not finite, and
encodes those of tables with a codec, with what earlier encodings have left out.
"""

from shoal.pushes.door import Door

__all__ = ["Door"]
