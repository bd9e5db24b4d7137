"""Trace events, and the recorder that keeps them until a writer takes them."""
