"""What servers store: table specifications, dense shards, access methods. No network, no time.

`spec` and `schedules` import without torch, because schedulers and messages carry specifications;
the others need it.
"""
