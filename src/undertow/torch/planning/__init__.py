"""Measurements of torch models and devices for a plan."""
