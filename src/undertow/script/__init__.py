"""What brings undertow to scripts that have never heard of it."""
