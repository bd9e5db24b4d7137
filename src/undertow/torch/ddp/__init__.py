"""The wrapper around a module, and `parallelize`."""
