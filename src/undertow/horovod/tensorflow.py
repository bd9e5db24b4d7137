"""Refuses `import horovod.tensorflow` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("tensorflow")
