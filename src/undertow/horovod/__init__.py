"""The door for scripts that are written for Horovod: the same names, over our engine.

    import undertow.horovod
    undertow.horovod.install()      # `undertow run` does so where Horovod is not there
    import horovod.torch as hvd     # is undertow.horovod.torch now

Importing this costs nothing: torch is imported by `undertow.horovod.torch` alone.
"""

from __future__ import annotations

from typing import NoReturn

from undertow.horovod.aliases import install, uninstall
from undertow.horovod.errors import NotThere

__all__ = ["__version__", "install", "uninstall"]
__version__ = "0.28.1"  # of Horovod: the one whose behaviour is followed


def __getattr__(name: str) -> NoReturn:
    if name == "run":
        raise NotThere("horovod.run is not there: start the script with `undertow run` or torchrun")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
