"""The `shoal` command.

Only this room and `shoal.init()` read environment variables, and a flag always wins.
"""

from shoal.cli import cluster, tools, training
from shoal.cli.group import main

__all__ = ["cluster", "main", "tools", "training"]
