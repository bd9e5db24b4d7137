"""Refuses `import horovod.common.elastic` in words."""

from undertow.horovod.missing import missing_module

raise missing_module("common.elastic")
