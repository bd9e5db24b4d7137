"""Refuses `import horovod.tensorflow` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("tensorflow")
