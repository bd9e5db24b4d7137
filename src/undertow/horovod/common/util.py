"""Horovod's name for `undertow.horovod.compatibility`."""

from undertow.horovod.compatibility import *  # noqa: F403
from undertow.horovod.compatibility import _cache  # noqa: F401  # scripts import it
