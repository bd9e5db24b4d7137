"""A single-process script, trained on all ranks.

In: the script's optimizers, data loaders, random numbers, files and output.
Out: one training run.  The first optimizer joins the ranks.  After that all ranks hold the same parameters, and each
takes its share of the data.  Rank 0 announces every change once.
A script without an optimizer is not synchronised: rank 0 warns, or the run is refused (see `unsynchronised`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.decoding import Decoder
from undertow.engine.interface import Group
from undertow.runtime import process
from undertow.script.awareness import find_join_call, has_joined, imports_undertow
from undertow.script.checkpoints import Checkpoints
from undertow.script.event_files import EventFiles
from undertow.script.folders import Folders
from undertow.script.trained_models import TrainedModels
from undertow.script.unsynchronised import FirstStepCheck, UnsynchronisedTraining, check_averaged
from undertow.settings import Batch, Settings
from undertow.torch.data.data_sharing import DataSharing, copy_from_first
from undertow.torch.data.randomness import ComputeStream, RandomState, capture, diverge, restore
from undertow.torch.ranks.replicas import compare_tensors
from undertow.torch_groups import TorchRendezvous

_numbers: Decoder[float] = Decoder(float, "a number of rank 0")
_FIGURES = (
    "losses and accuracies that the script computes on training batches cover rank 0's share only; an evaluation over "
    "all data is exact"
)


class SingleProcessScript(DataSharing):
    """The single-process script that this process runs.

    `on_begin` is called when the script turns out to be a single-process script, `on_end` when it turns out to know of
    ranks.  If the second follows the first, `on_join` is called before `on_end`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        looks_single_process: bool = True,
        on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
        on_join: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            rank=settings.rank,
            size=settings.world_size,
            is_split=settings.batch is Batch.SPLIT,
            numbers=ComputeStream(settings.rank),
        )
        self.settings = settings
        self.checkpoints = Checkpoints()
        self.folders = Folders()
        self.events = EventFiles(settings.rank)
        self.stop_watching: Callable[[], None] = lambda: None  # ends the hook on optimizer steps; not during a step
        self.restart: Callable[[], None] = lambda: None  # runs the script from its start, with RANK hidden from it
        self._group: Group | None = None  # set when the training begins
        self._is_over = False
        self._looks_single_process = looks_single_process
        self._on_begin = on_begin
        self._on_end = on_end
        self._on_join = on_join
        self._models = TrainedModels(overlaps=settings.overlap)
        self._announced: set[str] = set()
        self._has_shared = False  # data has been divided among the ranks
        self._has_diverged = False  # each rank draws its own random numbers (--seed-per-rank)
        self._has_counted_whole = False  # the script took a loader's length before any data was shared
        self._first_step = FirstStepCheck(settings, self.announce)  # for a script that joins the workers itself
        self._unsynchronised = UnsynchronisedTraining(settings)

    @property
    def group(self) -> Group | None:
        """The group of all ranks, while this script is trained on them."""
        return None if self._is_over else self._group

    @property
    def writes(self) -> bool:
        """Whether this rank writes files: all do while the script is left alone, else only rank 0."""
        return self.group is None or self.settings.rank == 0

    # Start and end

    def _begin(self) -> bool:
        """Join the other ranks at the first optimizer; return False if the script joins them itself."""
        if has_joined() or imports_undertow():
            self._leave_alone()
            return False
        # A rank may take long to reach its first optimizer; the launcher ends the job if a worker dies before that.
        timeout_s = max(self.settings.start_timeout_s, self.settings.stall_timeout_s)
        process.init_for_script(TorchRendezvous(), self.leave, start_timeout_s=timeout_s)
        self._group = process.default_group()
        self.events.drop()
        self._on_begin()
        self.announce(
            f"{sys.argv[0]} is a single-process script: training it on {self.settings.world_size} workers. Only rank 0 "
            "prints, shows progress bars and saves (--plain off to disable)"
        )
        self.announce(
            "random numbers: all ranks draw the same weights and the same order of the data; computing on its share, "
            "each rank draws its own numbers"
            if self._looks_single_process
            else "random numbers: those of Python and numpy differ between ranks so far, because the script's text "
            "mentions ranks: seed both generators"
        )
        self._watch_steps()
        return True

    def _leave_alone(self) -> None:
        """Leave a script alone that knows of other workers, and check its first step."""
        self.end()
        self._first_step = FirstStepCheck(self.settings, self.announce, must_join=not has_joined())
        self._watch_steps()

    def leave(self, call: str) -> None:
        """Undo everything, because the script is about to join the other workers itself, with this call."""
        if self.group is None:
            return
        self.announce(
            f"{sys.argv[0]} has joined the other workers itself ({call}): what undertow changed for a single-process "
            "script is undone"
        )
        try:
            self._models.finish()
            self._joined.barrier()  # after this, nothing is in flight
            self._models.own_weights.restore()
        finally:
            self._on_join()
            self.end()
            self.checkpoints.write(self.settings.rank)
            self.events.write()
            process.shutdown()

    def end(self) -> None:
        """Leave the script alone for the rest of its run: it knows of ranks."""
        if not self._is_over:
            self._is_over = True
            self.weight = 1.0
            self.numbers.end()
            self._models.release()
            self._on_end()
            if self._group is None:
                self.events.write()

    def _check_joined(self) -> None:
        """Leave the script alone if it has joined the other workers by a call that undertow does not intercept."""
        call = None if self.group is None else find_join_call()
        if call is not None:
            self.leave(call)

    # Optimizers

    def adopt(self, optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
        """Keep the parameters of these parameter groups the same on all ranks."""
        self._check_joined()
        if self._is_over or (self._group is None and not self._begin()):
            return
        name = type(optimizer).__name__
        parameters = [parameter for group in groups for parameter in group["params"]]
        if not all(isinstance(parameter, torch.nn.Parameter) for parameter in parameters):
            self.announce(
                f"{name}: tensors that are not a torch.nn.Parameter are not synchronised: each rank has its own"
            )
        added = self._models.adopt(optimizer, parameters, self._joined)
        if self.is_split and self._models.has_batch_norm:
            self.announce(
                "batch normalisation sees only each rank's share of a batch: results differ from those of one process"
            )
        if not added:
            return
        if self.settings.seed_per_rank and not self._has_diverged:
            self._has_diverged = True
            diverge(self.settings.rank)
            self.announce("--seed-per-rank: weights are rank 0's; from now on each rank draws its own random numbers")
            self.announce(_FIGURES)
        count = f"{added} parameter{'s' if added > 1 else ''}"
        self.announce(
            f"{name}: {count} start with rank 0's values; gradients are averaged over {self.settings.world_size} "
            "workers"
        )
        if isinstance(optimizer, torch.optim.LBFGS):
            self.announce("LBFGS decides by the loss, which may differ between ranks: give all ranks the same data")

    def _watch_steps(self) -> None:
        self.stop_watching = register_optimizer_step_pre_hook(lambda optimizer, *given: self._step(optimizer)).remove

    def _step(self, optimizer: Optimizer) -> None:
        """Check an optimizer that is about to step."""
        self._check_joined()
        if self._is_over:
            self._first_step.check()
            return
        differs = self._has_shared or self._has_diverged
        for model in self._models.models_of(optimizer):
            if differs:
                check_averaged(optimizer, model.find_unaveraged())
            self._models.note_trained(model)
        if not differs:
            same = (
                "every rank computes the same, so nothing is gained"
                if self._looks_single_process
                else "if the script gives all ranks the same data, nothing is gained"
            )
            self.announce(
                f"no shuffling DataLoader so far: {same}. Take batches from a DataLoader with shuffle=True, or, if the "
                "script draws them itself (torch.randint), add --seed-per-rank"
            )

    # Gradients

    def start_backward(self, outputs: Sequence[Any]) -> None:
        """Note a backward pass, which adds gradients to those of the leaves."""
        self._count_pass(functools.partial(self._unsynchronised.start_backward, outputs))
        self._check_joined()
        super().start_backward(outputs)

    def start_gradients(self, inputs: Sequence[Any]) -> None:
        """Note a computation of gradients that are returned, not accumulated."""
        self._count_pass(functools.partial(self._unsynchronised.start_gradients, inputs))

    def _count_pass(self, count: Callable[[], str | None]) -> None:
        if self._group is None and not self._is_over and not has_joined():
            warning = count()
            if warning is not None:
                self.announce(warning)

    # Data

    def shares(self) -> bool:
        """Return whether loaders hand out shares, which they do once the ranks have joined."""
        self._check_joined()
        return self.group is not None and self.settings.world_size > 1

    def start_sharing(self, description: str) -> None:
        self._has_shared = True
        self.announce(description)
        self.announce(_FIGURES)
        if self._has_counted_whole and not self.is_split:
            self.announce(
                "the script took len() of a DataLoader before it made an optimizer, which is the length over all data: "
                "a schedule computed from it may be too long (--batch split keeps the length)"
            )

    def note_whole_length(self) -> None:
        self._has_counted_whole |= self._group is None

    def start_epoch(self) -> RandomState:
        """Return rank 0's random state, from which all ranks draw the order of the data.

        Weights that the script has changed since it made its optimizer become rank 0's as well.
        """
        if self.group is None:  # the loader's iterator was made before the script joined
            return capture()
        self._models.copy_untrained()
        return self._share_numbers()

    def end_epoch(self) -> None:
        """Check that the ranks agree; until the next epoch all ranks draw the same random numbers.

        Raises `DriftError` if they have not gone through the same data or do not hold the same weights: all later
        results would be wrong.
        """
        order = torch.tensor(self.take_order())
        if self.group is None:
            return
        self._share_numbers()
        trained = self._models.list_trained()
        weights = [named for model in trained for named in model.named_parameters()]
        compare_tensors([("the order of the data", order), *weights], self._joined)
        self._models.end_epoch(trained)

    def choose(self, value: float) -> float:
        """Return rank 0's value on all ranks."""
        return _numbers.decode(self._joined.agree("copy", msgspec.msgpack.encode(value)))

    def _share_numbers(self) -> RandomState:
        """Return rank 0's random state; continue from it, or with this rank's own numbers (--seed-per-rank)."""
        self.numbers.stop()
        self._resume_drawing()
        state = copy_from_first(self._joined, capture())
        restore(state)
        if self._has_diverged:
            diverge(self.settings.rank)
        return state

    @property
    def _joined(self) -> Group:
        assert self._group is not None
        return self._group

    def announce(self, message: str) -> None:
        """Print a line once, on rank 0, if there are several ranks."""
        if self.settings.rank == 0 < self.settings.world_size - 1 and message not in self._announced:
            self._announced.add(message)
            print(f"undertow: {message}", file=sys.stderr, flush=True)
