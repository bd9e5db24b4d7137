"""What frameworks above DistributedDataParallel ask of torch's reducer, which is not used here.

In: Lightning's manual optimization and Accelerate's `trigger_sync_in_backward`.  Out: the next backward synchronises.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from undertow.torch.passes import Passes


class Reducer:
    """Of one wrapped module."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Let the backward that follows be synchronised, whatever its forward asked for."""
        self._passes.ask_for(outputs)

    def _rebuild_buckets(self) -> bool:
        return False  # there are none

    def _delay_all_reduce(self) -> None:
        """Nothing to do: no backward ends without its gradients on their way."""
