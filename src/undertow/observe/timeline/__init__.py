"""Analysis of traces: where the time of a step went, what it waited for, and what would make it faster."""
