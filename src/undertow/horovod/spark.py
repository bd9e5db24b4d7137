"""Refuses `import horovod.spark` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("spark")
