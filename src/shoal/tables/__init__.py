"""What servers store: table specifications, dense shards, access methods. No network, no time.

`spec` is importable without torch, because schedulers and messages carry specifications;
`access` and `dense` need it.
"""
