"""The record of every stage: what is noted, how it becomes a file that trace viewers open, and how it is read back."""
