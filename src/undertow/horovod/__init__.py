"""The frontend for scripts that are written for Horovod: Horovod's API on top of undertow's engine.

    import undertow.horovod
    undertow.horovod.install()      # `undertow run` does this where Horovod is not installed
    import horovod.torch as hvd     # now imports undertow.horovod.torch

Importing this package is cheap: only `undertow.horovod.torch` imports torch.
"""

from __future__ import annotations

from typing import Any

from undertow.horovod.aliases import install, uninstall

__all__ = ["__version__", "install", "run", "uninstall"]  # `__getattr__` imports run
__version__ = "0.28.1"  # the version of Horovod whose behaviour this follows


def __getattr__(name: str) -> Any:
    """Import `run` on first use, because every worker imports this module when it starts."""
    if name == "run":
        from undertow.horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
