"""A rank's own weights, where rank 0's were copied over them: given back if the script turns out to join by itself.

In: parameters before and after each copy.  Out: the values that they had, as long as nothing has trained them.
Only values that differ are kept: in most scripts all ranks draw the same weights, and nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary


class OwnWeights:
    def __init__(self) -> None:
        self._replaced: Any = WeakIdKeyDictionary()  # parameter: its own value, and the one that it was given

    @torch.no_grad()
    def copy(self, parameters: Collection[torch.Tensor], copy: Callable[[], None]) -> None:
        """Run `copy`, which gives these parameters other values, and remember theirs."""
        own = [(parameter, self._find_own(parameter)) for parameter in parameters]
        copy()
        for parameter, value in own:
            if _are_equal(parameter, value):
                self._replaced.pop(parameter, None)
            else:
                self._replaced[parameter] = value, parameter.detach().clone()

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        """These are trained from now on."""
        for parameter in parameters:
            self._replaced.pop(parameter, None)

    @torch.no_grad()
    def restore(self) -> None:
        """Give back what was replaced, but not to a parameter that the script has changed since."""
        for parameter, (own, given) in list(self._replaced.items()):
            if _are_equal(parameter, given):
                parameter.copy_(own)
        self._replaced = WeakIdKeyDictionary()

    def _find_own(self, parameter: torch.Tensor) -> torch.Tensor:
        own, given = self._replaced.get(parameter, (None, None))
        if own is not None and _are_equal(parameter, given):
            return torch.as_tensor(own)
        return parameter.detach().clone()


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, but for what is not a number."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
