"""State machines of tools that are no members: status queries and death reports."""
