"""The frontend for scripts that are written for Horovod: its names, over undertow's engine.

    import undertow.horovod
    undertow.horovod.install()      # `undertow run` does this where Horovod is not installed
    import horovod.torch as hvd     # imports undertow.horovod.torch now

Importing this package is cheap: only `undertow.horovod.torch` imports torch.
"""

from __future__ import annotations

from typing import Any

from undertow.horovod.aliases import install, uninstall

__all__ = ["__version__", "install", "run", "uninstall"]  # `__getattr__` imports run
__version__ = "0.28.1"  # the version of Horovod whose behaviour this follows


def __getattr__(name: str) -> Any:
    """Import `run` on first use, because every worker imports this module at its start."""
    if name == "run":
        from undertow.horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
