"""Worker side of the key-value store: contributions go out, results come back."""
