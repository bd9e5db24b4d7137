"""Refuses `import horovod.torch.elastic` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("torch.elastic")
