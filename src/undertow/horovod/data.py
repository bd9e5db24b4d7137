"""Refuses `import horovod.data` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("data")
