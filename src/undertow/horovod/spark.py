"""Refuses `import horovod.spark` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("spark")
