"""Which server has which rows, which move, and which are lost."""
