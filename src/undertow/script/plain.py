"""A script that knows nothing of other ranks, trained on all of them.

In: its optimizers, its loaders, its random numbers, its files, what it prints.
Out: one training: the first optimizer joins the ranks; from then on parameters of optimizers stay the same everywhere,
and each rank takes its share of the data.  Everything that is changed is said once, by rank 0.
A script without an optimizer is not synchronised: that is said, or refused (see `unsynchronised`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from undertow.core.decoding import Decoder
from undertow.runtime import process
from undertow.runtime.group import Group
from undertow.script.adoption import Adopted, Buffers, Loose, find_holder, find_models
from undertow.script.awareness import find_join, is_alone, knows_of_ranks
from undertow.script.events import Events
from undertow.script.files import Files
from undertow.script.folders import Folders
from undertow.script.own_imports import imports_undertow
from undertow.script.unsynchronised import FirstStep, Unsynchronised, check_averaged
from undertow.script.weights import OwnWeights
from undertow.settings import Batch, Settings
from undertow.torch.data.randomness import OwnNumbers, State, capture, diverge, restore
from undertow.torch.data.sharing import Sharing, copy_from_first
from undertow.torch.replicas import compare_tensors

_numbers: Decoder[float] = Decoder(float, "a number of rank 0")
_FIGURES = (
    "figures that the script computes of its training batches are those of rank 0's share; an evaluation of all data "
    "is exact"
)


class Plain(Sharing):
    """Of this process.  `on_end` is called if the script turns out to know of ranks, `on_begin` if not.

    `on_join` is called before `on_end` if that turns out late: it has begun by then.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        looks_plain: bool = True,
        on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
        on_join: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            rank=settings.rank,
            size=settings.world_size,
            is_split=settings.batch is Batch.SPLIT,
            numbers=OwnNumbers(settings.rank),
        )
        self.settings = settings
        self.files = Files()
        self.folders = Folders()
        self.events = Events(settings.rank)
        self._group: Group | None = None  # once it has begun
        self._is_over = False
        self._looks_plain = looks_plain
        self._on_begin = on_begin
        self._on_end = on_end
        self._on_join = on_join
        self._own_weights = OwnWeights()
        self._adopted: weakref.WeakSet[Adopted] = weakref.WeakSet()
        self._fresh: list[Adopted] = []  # in the order in which they came, until the first epoch
        self._loose: list[Adopted] = []  # which nobody else holds
        self._buffers: weakref.WeakSet[Buffers] = weakref.WeakSet()
        self._known: Any = WeakIdKeyDictionary()  # parameters that are adopted, and a reference to their owner
        self._trained_by: weakref.WeakKeyDictionary[Optimizer, weakref.WeakSet[Adopted]] = weakref.WeakKeyDictionary()
        self._said: set[str] = set()
        self._has_shared = False  # any data among the ranks
        self._has_diverged = False  # each rank draws its own numbers, as --seed-per-rank wishes
        self._has_counted = False  # the batches of a loader, before anything was shared
        self.stop_watching: Callable[[], None] = lambda: None  # steps; not to be called in one
        self.start_again: Callable[[], None] = lambda: None  # the script, with RANK hidden from it
        self._first_step = FirstStep(settings, self.say)  # after it was left alone
        self._unsynchronised = Unsynchronised(settings)

    @property
    def group(self) -> Group | None:
        """All ranks, while this script is trained on them."""
        return None if self._is_over else self._group

    @property
    def writes(self) -> bool:
        """Whether this rank writes files: the first does, and every one of a script that is left alone."""
        return self.group is None or self.settings.rank == 0

    # Optimizers

    def adopt(self, optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
        """Keep the parameters of these groups the same on all ranks."""
        self._check_joined()
        if self._is_over or (self._group is None and not self._begin()):
            return
        every = [parameter for group in groups for parameter in group["params"]]
        new = [p for p in every if isinstance(p, torch.nn.Parameter) and p not in self._known]
        name = type(optimizer).__name__
        if not all(isinstance(p, torch.nn.Parameter) for p in every):
            self.say(f"{name}: tensors that are no torch.nn.Parameter are left alone, each rank has its own")
        if new:
            self._adopt_models(new)
        self._trained_by.setdefault(optimizer, weakref.WeakSet()).update(self._find_owners(every))
        if not new:
            return
        if self.settings.seed_per_rank and not self._has_diverged:
            self._has_diverged = True
            diverge(self.settings.rank)
            self.say("--seed-per-rank: weights are rank 0's; from now on each rank draws random numbers of its own")
            self.say(_FIGURES)
        count = f"{len(new)} parameter{'s' if len(new) > 1 else ''}"
        self.say(f"{name}: {count} start as rank 0's; gradients are averaged over {self.settings.world_size} workers")
        if isinstance(optimizer, torch.optim.LBFGS):
            self.say("LBFGS decides by the loss, which may differ between ranks: give all of them the same data")

    def _find_owners(self, parameters: Sequence[torch.Tensor]) -> list[Adopted]:
        """Also those of parameters that another optimizer has brought."""
        owners = [self._known[parameter]() for parameter in parameters if parameter in self._known]
        return [owner for owner in owners if owner is not None]

    def _adopt_models(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        rest = {id(parameter): parameter for parameter in parameters}
        for model, *twins in find_models(parameters):
            held = [p for p in model.parameters() if rest.pop(id(p), None) is not None]
            if held:
                adopted = self._add(find_holder(model, held), held)
                adopted.buffers = self._follow_buffers(model, twins)
                holders = {id(holder): holder for holder in (find_holder(twin, held) for twin in twins)}
                for holder in holders.values():
                    if holder is not adopted.module:
                        adopted.follow(holder)
        if rest:
            self._loose.append(self._add(Loose(list(rest.values())), list(rest.values())))

    def _add(self, module: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> Adopted:
        adopted = Adopted(module, parameters, overlaps=self.settings.overlap)
        self._copy_weights(adopted)
        for parameter in parameters:
            self._known[parameter] = weakref.ref(adopted)
        self._adopted.add(adopted)
        self._fresh.append(adopted)
        return adopted

    def _copy_weights(self, adopted: Adopted) -> None:
        self._own_weights.copy([parameter for _, parameter in adopted.named_parameters()], adopted.copy_weights)

    def _follow_buffers(self, model: torch.nn.Module, twins: Sequence[torch.nn.Module]) -> Buffers | None:
        if next(model.buffers(), None) is None:
            return None
        for buffers in self._buffers:
            if any(buffers.module is one for one in (model, *twins)):
                return buffers
        made = Buffers(model, self._joined)
        for twin in twins:
            made.follow(twin)
        self._buffers.add(made)
        self._warn_of_batch_norm(model)
        return made

    def _warn_of_batch_norm(self, model: torch.nn.Module) -> None:
        kind = torch.nn.modules.batchnorm._BatchNorm
        if self.is_split and any(isinstance(part, kind) for part in model.modules()):
            self.say("batch normalisation sees each rank's part of a batch only: results are not those of one process")

    def _begin(self) -> bool:
        """The first optimizer: join the others, unless the script has done so itself."""
        if knows_of_ranks() or imports_undertow():
            if self.is_split and not is_alone():
                self.say(
                    "--batch split has no effect but on loaders that the script gives to undertow.torch.distribute(): "
                    "it knows of other workers, and shares all other data itself"
                )
            self.end()
            self._first_step = FirstStep(self.settings, self.say, must_join=not knows_of_ranks())
            self._watch_steps()
            return False
        # What comes before the first optimizer takes as long as it takes; who dies meanwhile ends the job.
        timeout_s = max(self.settings.start_timeout_s, self.settings.stall_timeout_s)
        process.init_for_script(self.leave, start_timeout_s=timeout_s)
        self._group = process.default_group()
        self.events.drop()
        self._on_begin()
        self.say(
            f"{sys.argv[0]} knows nothing of other workers: it is trained on {self.settings.world_size} of them "
            "(--plain off leaves it alone)"
        )
        self.say("output, progress bars and torch.save: rank 0's only")
        self.say(
            "random numbers: the same on all ranks for weights and the order of the data, others while they compute"
            if self._looks_plain
            else "random numbers: what Python and numpy have drawn so far differs between ranks, because the script's "
            "text speaks of ranks; give them seeds"
        )
        self._watch_steps()
        return True

    def _watch_steps(self) -> None:
        self.stop_watching = register_optimizer_step_pre_hook(lambda optimizer, *given: self._step(optimizer)).remove

    def leave(self, call: str) -> None:
        """The script joins the others itself after all, by this call: undo everything before it does."""
        if self.group is None:
            return
        self.say(
            f"{sys.argv[0]} has joined the other workers itself ({call}): what undertow changed for a single-process "
            "script is undone"
        )
        try:
            for adopted in self._adopted:
                adopted.finish()
            self._joined.barrier()  # nothing is on its way
            self._own_weights.restore()
        finally:
            self._on_join()
            self.end()
            self.files.write(self.settings.rank)
            self.events.write()
            process.shutdown()

    def _check_joined(self) -> None:
        """Leave the script alone if it has joined in a way that went unnoticed."""
        call = None if self.group is None else find_join()
        if call is not None:
            self.leave(call)

    def end(self) -> None:
        """The script knows of ranks: leave it alone from now on."""
        if not self._is_over:
            self._is_over = True
            self.weight = 1.0
            self.numbers.end()
            for adopted in self._adopted:
                adopted.release()
            for buffers in self._buffers:
                buffers.release()
            self._fresh, self._loose = [], []
            self._on_end()
            if self._group is None:
                self.events.write()

    def _step(self, optimizer: Optimizer) -> None:
        """A step is about to be made, whatever the gradients are from."""
        self._check_joined()
        if self._is_over:
            self._first_step.check()
            return
        for adopted in self._trained_by.get(optimizer, ()):
            if self._has_shared or self._has_diverged:
                check_averaged(optimizer, adopted.find_unaveraged())
            adopted.has_trained = True
            self._own_weights.forget(parameter for _, parameter in adopted.named_parameters())
        self._fresh = [adopted for adopted in self._fresh if not adopted.has_trained]
        if not self._has_shared and not self._has_diverged:
            same = (
                "every rank computes the same, nothing is gained"
                if self._looks_plain
                else "if the script gives all ranks the same data, nothing is gained"
            )
            self.say(
                f"no shuffling DataLoader so far: {same}. Take batches from a DataLoader with shuffle=True, or, if the "
                "script draws them itself (torch.randint), add --seed-per-rank"
            )

    # Data

    def shares(self) -> bool:
        """Whether loaders hand out shares now: not before there is anything that keeps the ranks together."""
        self._check_joined()
        return self.group is not None and self.settings.world_size > 1

    def start_sharing(self, words: str) -> None:
        """A loader is about to hand out its shares, or says how many there are."""
        self._has_shared = True
        self.say(words)
        self.say(_FIGURES)
        if self._has_counted and not self.is_split:
            self.say(
                "len() of a DataLoader was asked before there was an optimizer, and was that of the whole: what the "
                "script made of it, such as a schedule, may be too long (--batch split leaves it as it is)"
            )

    def count_whole(self) -> None:
        """A loader that may be shared later was asked how many batches it has."""
        self._has_counted |= self._group is None

    def start_epoch(self) -> State:
        """The numbers that all draw the order of the data from: rank 0's.

        Weights that a script has changed since it made its optimizer are rank 0's as well.
        """
        if self.group is None:  # the loader's iterator was made before the script joined
            return capture()
        fresh, self._fresh = self._fresh, []
        for adopted in fresh:
            self._copy_weights(adopted)
        state = self._share_numbers()
        self._diverge_again()
        return state

    def start_backward(self, outputs: Sequence[Any]) -> None:
        """The gradients of these are computed, and added to those of the leaves."""
        self._note_pass(functools.partial(self._unsynchronised.start_backward, outputs))
        self._check_joined()
        super().start_backward(outputs)

    def start_gradients(self, inputs: Sequence[Any]) -> None:
        """The gradients of these are computed, and not added to anything."""
        self._note_pass(functools.partial(self._unsynchronised.start_gradients, inputs))

    def _note_pass(self, start: Callable[[], str | None]) -> None:
        if self._group is None and not self._is_over and not knows_of_ranks():
            words = start()
            if words is not None:
                self.say(words)

    def _share_numbers(self) -> State:
        self.numbers.stop()
        self._resume_drawing()
        state = copy_from_first(self._joined, capture())
        restore(state)
        return state

    def _diverge_again(self) -> None:
        """Numbers that were shared for the order of the data are not those that the script draws."""
        if self._has_diverged:
            diverge(self.settings.rank)

    def end_epoch(self) -> None:
        """All parts have been handed out: until the next ones all ranks draw the same numbers.

        Raises `DriftError` if they have not gone through the same data, or have not trained the same weights: nothing
        that is done next would be right.
        """
        order = torch.tensor(self.take_order())
        if self.group is None:
            return
        self._share_numbers()
        self._diverge_again()
        # Of those that were trained: which others are still alive may differ between ranks.
        trained = sorted((one for one in self._adopted if one.has_trained), key=lambda one: one.number)
        weights = [named for one in trained for named in one.named_parameters()]
        compare_tensors([("the order of the data", order), *weights], self._joined)
        # Now, too: a script may evaluate a model without calling its forward.
        for buffers in dict.fromkeys(one.buffers for one in trained if one.buffers is not None):
            buffers.copy()
        for adopted in trained:
            adopted.has_trained = False

    def choose(self, value: float) -> float:
        """Rank 0's, on all ranks."""
        return _numbers.decode(self._joined.agree("copy", msgspec.msgpack.encode(value)))

    @property
    def _joined(self) -> Group:
        assert self._group is not None
        return self._group

    def say(self, words: str) -> None:
        """Once, by rank 0 of several."""
        if self.settings.rank == 0 < self.settings.world_size - 1 and words not in self._said:
            self._said.add(words)
            print(f"undertow: {words}", file=sys.stderr, flush=True)
