"""Helpers that scripts and suites import from `horovod.runner.util`."""
