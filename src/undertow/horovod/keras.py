"""Refuses `import horovod.keras` with advice."""

from undertow.horovod.errors import missing_module

raise missing_module("keras")
