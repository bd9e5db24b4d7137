"""The order in which a forward pass uses the parameters: what is needed first travels first.

In: "these parameters are used now".  Out: the place of each one in the order of first use.
Until a parameter has been used its place is that in which the module holds it.  A graph that
changes from step to step is followed: the latest forward pass is the best guess of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Order:
    """Of one module's parameters.  Used by the training thread only."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._places = {parameter: place for place, parameter in enumerate(parameters)}
        self._used: set[torch.Tensor] = set()  # in the forward pass that goes on

    def use(self, parameters: Iterable[torch.Tensor]) -> None:
        """A forward pass is about to read these."""
        for parameter in parameters:
            if parameter not in self._used:
                self._places[parameter] = len(self._used)
                self._used.add(parameter)

    def end_pass(self) -> None:
        """Whatever is used from now on belongs to the next forward pass."""
        self._used.clear()

    def places(self, parameters: Sequence[torch.Tensor]) -> list[int]:
        """The lower the earlier; parameters that were never seen come last."""
        last = len(self._places)
        return [self._places.get(parameter, last) for parameter in parameters]
