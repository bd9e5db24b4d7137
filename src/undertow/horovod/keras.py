"""Refuses `import horovod.keras` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("keras")
