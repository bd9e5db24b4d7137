"""Refuses `import horovod.mxnet` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("mxnet")
