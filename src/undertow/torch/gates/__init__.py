"""What makes a reader of a pending gradient or update wait for it."""
