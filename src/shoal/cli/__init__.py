"""The `shoal` command.

Only this room and `shoal.init()` read environment variables, and a flag always wins.
"""

from shoal.cli import cluster, comparing, tools, training
from shoal.cli.group import main

__all__ = ["cluster", "comparing", "main", "tools", "training"]
