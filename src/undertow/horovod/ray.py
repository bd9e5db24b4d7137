"""Refuses `import horovod.ray` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("ray")
