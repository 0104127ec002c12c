"""Machines of tools that are no members: status queries, checkpoint requests, death reports."""
