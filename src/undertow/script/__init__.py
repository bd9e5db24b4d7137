"""Prepares processes for scripts that do not import undertow, and runs the scripts."""
