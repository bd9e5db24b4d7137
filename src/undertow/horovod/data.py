"""Refuses `import horovod.data` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("data")
