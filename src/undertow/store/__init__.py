"""The key-value store: every worker owns one shard of it."""
