"""Server side of the key-value store: shards, which sum contributions and answer."""
