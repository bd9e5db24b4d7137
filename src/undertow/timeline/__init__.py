"""Traces, read back and understood: where the time of a step went, what it waited for, and what would help."""
