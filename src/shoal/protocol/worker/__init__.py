"""The worker's state machine: routing, requests in flight, sending and rerouting."""
