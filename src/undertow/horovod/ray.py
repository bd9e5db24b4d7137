"""Refuses `import horovod.ray` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("ray")
