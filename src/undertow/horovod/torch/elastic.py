"""Refuses `import horovod.torch.elastic` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("torch.elastic")
