"""Worker's side of the key-value store: sends contributions and receives results."""
