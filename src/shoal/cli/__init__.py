"""The `shoal` command.

Only this package and `shoal.init()` read the options in environment variables; a flag always wins.
"""

from shoal.cli import cluster, comparing, keys, tools, training
from shoal.cli.group import main

__all__ = ["cluster", "comparing", "keys", "main", "tools", "training"]
