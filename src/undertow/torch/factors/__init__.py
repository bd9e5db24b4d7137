"""Layers that hand over factors, or touched rows, instead of gradients."""
