"""Refuses `import horovod.mxnet` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("mxnet")
