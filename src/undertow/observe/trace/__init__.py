"""Trace files: trace events in a format that viewers open, written by each rank and merged into one file."""
