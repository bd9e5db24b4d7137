"""Gradients of a torch module in a table, and those that torch's process group reduces."""
