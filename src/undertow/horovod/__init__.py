"""The door for scripts that are written for Horovod: the same names, over our engine.

    import undertow.horovod
    undertow.horovod.install()      # `undertow run` does so where Horovod is not there
    import horovod.torch as hvd     # is undertow.horovod.torch now

Importing this costs nothing: torch is imported by `undertow.horovod.torch` alone.
"""

from __future__ import annotations

from typing import Any

from undertow.horovod.aliases import install, uninstall

__all__ = ["__version__", "install", "run", "uninstall"]  # run: see below
__version__ = "0.28.1"  # of Horovod: the one whose behaviour is followed


def __getattr__(name: str) -> Any:
    """Import `run` when it is asked for: every worker of every script imports this module at its start."""
    if name == "run":
        from undertow.horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
