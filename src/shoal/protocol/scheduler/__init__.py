"""The scheduler's state machine: members, views, placement, leases, barriers, shutdown."""
