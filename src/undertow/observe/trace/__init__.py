"""Trace files: trace events in a format that viewers open, and what writes and merges them."""
