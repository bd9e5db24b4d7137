"""Stages 1 to 3 and 8: sends each gradient as soon as it is final, and puts the mean in its place.

In: calls that say that a gradient is ready, or that backward has ended.
Out: contributions to the group while backward still runs; afterwards every slot holds the mean over all workers.
A tensor without a gradient contributes nothing, so graphs may differ from step to step and from rank to rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from undertow.engine.core.rounds import EVERYONE, Op
from undertow.engine.core.slicing import TensorSpec
from undertow.engine.interface import Group
from undertow.errors import UndertowError
from undertow.sync.completion import Arrivals, Completion
from undertow.sync.factors import FactorsSyncer
from undertow.sync.factors_to_shard import FactorsToShardSyncer
from undertow.sync.slot import FactorSlot, GradientSlot
from undertow.sync.syncers import DenseSyncer, FusedSyncer, Syncer
from undertow.sync.table import Layout, Table
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

_FACTORED = (FactorsSyncer, FactorsToShardSyncer)


class GradientTable:
    """Gradients of some tensors, synchronised together once per pass.

    Slots are listed in the order in which their gradients are expected.  Frontends whose plans may use schemes other
    than `dense` override the methods under "Choices of a plan".
    """

    # The advice in the error about a gradient that becomes ready twice in one pass.
    REMEDY: ClassVar[str] = ""

    def __init__(
        self,
        group: Group,
        label: str,
        slots: Sequence[GradientSlot[Any]],
        specs: Sequence[TensorSpec],
        *,
        op: Op = Op.MEAN,
    ) -> None:
        self.table = Table(group, label, specs, op)
        self.priorities = [0] * len(slots)  # lowest first; the frontend sets them in the order of use
        self._group = group
        self._slots = slots
        self._factored: Mapping[int, FactorSlot[Any, Any]] = {}  # slots of the tensors that are sent as factors
        self._first = self._current = self._in_pass = self._lay_out(self.table.first)
        self._sent = [False] * len(slots)
        self._completions = [Completion(0, ())] * len(slots)

    def __len__(self) -> int:
        return len(self._slots)

    def name(self, index: int) -> str:
        return self._slots[index].name

    # Choices of a plan

    def find_factor_slot(self, index: int) -> FactorSlot[Any, Any] | None:
        """Return the slot of a tensor whose layer can hand over factors; None for all others."""
        return None

    def can_allreduce(self, index: int) -> bool:
        """Whether the framework's process group sums this gradient as exactly as shards do."""
        return False

    def make_allreduce_syncers(self, members: Sequence[int]) -> Sequence[Syncer]:
        """Return syncers that give these gradients to the framework's process group."""
        raise NotImplementedError

    @property
    def allreduce_bytes_per_s(self) -> float | None:
        """The rate of the framework's process group in the last passes; None if it is not used."""
        return None

    def change_layout(self, factored: Mapping[int, FactorSlot[Any, Any]], allreduced: Sequence[int] = ()) -> None:
        """Switch to the table's prepared layout, starting with the next pass; nothing may be in flight now."""
        self.table.change()
        self._factored = factored
        self._current = self._lay_out(self.table.current, allreduced)

    def _lay_out(self, layout: Layout, allreduced: Sequence[int] = ()) -> list[Syncer | None]:
        """Return the syncer of each tensor, None for an empty one."""
        syncers: list[Syncer] = [FusedSyncer(self._group, item, self._slots) for item in layout.slices if item.is_fused]
        syncers += self.make_allreduce_syncers(allreduced) if allreduced else []
        for index, slices in enumerate(layout.own_slices):
            if index in self._factored:
                kind = FactorsSyncer if slices[0].spec.owner == EVERYONE else FactorsToShardSyncer
                syncers.append(kind(self._group, index, self._factored[index], slices))
            elif slices:
                syncers.append(DenseSyncer(self._group, index, self._slots[index], slices))
        by_index = {index: syncer for syncer in syncers for index in syncer.members}
        return [by_index.get(index) for index in range(len(self._slots))]

    def takes_factors(self, index: int, *, now: bool) -> bool:
        """Whether factors are sent instead of this gradient, in the running pass (`now`) or in the next one."""
        return isinstance((self._in_pass if now else self._current)[index], _FACTORED)

    def sample_results(self) -> None:
        """Sample the results that this rank computes in this pass: see `find_digests`."""
        for syncer in self._current:
            if isinstance(syncer, FactorsSyncer):
                syncer.samples, syncer.digest = True, None

    def find_digests(self) -> dict[str, int]:
        """Return the digests of sampled results, by name.  If they differ between ranks, replicas have drifted."""
        digests = {}
        for index, syncer in enumerate(self._current):
            if isinstance(syncer, FactorsSyncer):
                syncer.samples = False
                if syncer.digest is not None:
                    digests[self.name(index)] = syncer.digest
        return digests

    def find_wholes(self) -> list[str]:
        """Return the names of factored tensors part of whose gradient did not come through the layer."""
        return [
            self.name(index)
            for index, syncer in enumerate(self._current)
            if isinstance(syncer, _FACTORED) and syncer.wholes
        ]

    # One pass

    def begin(self, arrivals: Arrivals | None = None, *, as_at_first: bool = False) -> None:
        """Begin a pass: every slice takes part in one round, and each completion is appended to `arrivals`.

        `as_at_first` uses the first layout, which every rank knows, whichever plans it has seen.
        """
        self._in_pass = self._first if as_at_first else self._current
        self._sent = [False] * len(self._slots)
        for syncer in {id(syncer): syncer for syncer in self._in_pass if syncer is not None}.values():
            completion = Completion(syncer.answers, syncer.members, arrivals)
            syncer.begin(completion, self.priorities)
            for index in syncer.members:
                self._completions[index] = completion

    def send(self, index: int, hint: Any = None) -> None:
        """Contribute a gradient that is final, or missing.  The hint is passed to its slot."""
        self.check_unsent(index)
        self._slots[index].check()
        self._sent[index] = True
        syncer = self._in_pass[index]
        since_s = process_recorder.read_clock()
        if syncer is not None:
            syncer.send(index, hint)
        if since_s:
            process_recorder.record(events.Hooked(since_s, process_recorder.clock(), self.name(index)))

    def check_unsent(self, index: int) -> None:
        """Raise `UndertowError` if this gradient was already sent: more has been added to it."""
        if self._sent[index]:
            raise UndertowError(
                f"the gradient of {self.name(index)!r} became ready twice in one backward pass, after it was sent. "
                f"{self.REMEDY}".rstrip()
            )

    def send_rest(self) -> None:
        """Contribute all remaining gradients: backward has ended."""
        for index, sent in enumerate(self._sent):
            if not sent:
                self.send(index)

    def wait(self) -> None:
        """Wait until all results have arrived."""
        for index, completion in enumerate(self._completions):
            self._group.wait_for(completion, events.AT_THE_END, tensor=self.name(index))

    def wait_for(self, index: int) -> None:
        """Wait until this result has arrived."""
        self._group.wait_for(self._completions[index], events.AT_THE_GATE, tensor=self.name(index))

    def is_here(self, index: int) -> bool:
        """Whether this result has arrived."""
        return self._completions[index].is_done

    def land(self) -> bool:
        """Put all results, which have arrived, in their slots.

        Returns whether a worker that ran out of input took no part.
        """
        since_s = process_recorder.read_clock()
        for index in range(len(self._slots)):
            self.land_one(index)
        if since_s:
            process_recorder.record(
                events.Applied(since_s, process_recorder.clock(), tuple(slot.name for slot in self._slots))
            )
        return any(completion.absent for completion in self._completions)

    def land_one(self, index: int) -> None:
        """Put a result that has arrived in its slot, unless it was received there."""
        syncer = self._in_pass[index]
        if syncer is not None:
            syncer.land(index)

    def _holds_memory_of(self, index: int) -> bool:
        """Whether a syncer holds the gradient's own memory in this pass."""
        syncer = self._in_pass[index]
        return syncer is not None and syncer.uses_memory_of(index)
