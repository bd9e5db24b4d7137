"""Refuses `import horovod.common.elastic` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("common.elastic")
