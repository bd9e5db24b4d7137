"""Objects of the user's that behave otherwise for a while: their own class with a mixin, under its own name."""

from __future__ import annotations

import functools
import types
from typing import Any


@functools.cache
def mix_class(mixin: Any, own: Any) -> Any:
    """Return an object's own class with a mixin in front of it."""
    body = {"__module__": own.__module__, "__qualname__": own.__qualname__}
    return types.new_class(own.__name__, (mixin, own), exec_body=lambda space: space.update(body))


def own_class(mixed: Any) -> Any:
    """Return the own class of an object whose class has a mixin."""
    return type(mixed).__bases__[1]


def reduce_to_own_class(reduced: Any, mixed: Any) -> Any:
    """Return a reduction of protocol 0, for copies and files, that makes an object of the own class.

    The oldest protocol names the class as an argument; later ones insist on the object's own.
    """
    make, (_, *arguments), *rest = reduced
    return make, (own_class(mixed), *arguments), *rest
