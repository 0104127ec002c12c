"""Workers' requests: admitted, carried out, answered."""
