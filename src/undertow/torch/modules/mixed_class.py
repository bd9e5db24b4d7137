"""Temporary mixins for the user's objects: an object gets a subclass of its own class, with that class's name."""

from __future__ import annotations

import functools
import types
from typing import Any


@functools.cache
def mix_class(mixin: Any, own: Any) -> Any:
    """Return a subclass of the mixin and of an object's own class, in this order."""
    body = {"__module__": own.__module__, "__qualname__": own.__qualname__}
    return types.new_class(own.__name__, (mixin, own), exec_body=lambda space: space.update(body))


def own_class(mixed: Any) -> Any:
    """Return the own class of an object whose class has a mixin."""
    return type(mixed).__bases__[1]


def reduce_to_own_class(reduced: Any, mixed: Any) -> Any:
    """Return a reduction of pickle protocol 0, for copies and files, that creates an object of the own class.

    Protocol 0 passes the class as an argument; later protocols require the object's actual class.
    """
    make, (_, *arguments), *rest = reduced
    return make, (own_class(mixed), *arguments), *rest
