"""Machines of tools that are no members: status queries, and single questions or reports."""
