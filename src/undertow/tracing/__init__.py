"""Trace events, and the recorder that keeps them until they are written."""
