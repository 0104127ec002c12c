"""Work on shards that takes long is done outside of the loop."""
