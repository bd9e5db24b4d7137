"""Gates, which make readers of a pending gradient or update wait for it."""
