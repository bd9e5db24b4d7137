"""`distribute`: lets an ordinary DataLoader hand out this worker's share of every batch.

In: the loader of a script that has joined the other workers itself.  Out: a loader of a subclass over the same data.
Shares and weights are those of a single-process script: there the methods in `replacements` are patched into torch's
classes, here they are methods of subclasses.  The script's random numbers do not change: the other ranks draw the order
from a copy of rank 0's generators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, DistributedSampler

from undertow.engine.interface import Group
from undertow.errors import ConfigError, DriftError
from undertow.runtime import process
from undertow.settings import Batch, read_settings
from undertow.torch.data.data_sharing import DataSharing, copy_from_first
from undertow.torch.data.loaders import check_shareable, find_sampler, is_stream
from undertow.torch.data.randomness import ComputeStream, RandomState, capture
from undertow.torch.data.replacements import (
    begin_again,
    choose_indices,
    count_batches,
    find_backward,
    hand_out,
    iterate,
    run_backward,
)
from undertow.torch.ranks.process_groups import group_for
from undertow.torch.ranks.replicas import compare_tensors

log = logging.getLogger("undertow")

Loader = TypeVar("Loader", bound=DataLoader[Any])
_MARK = "_undertow_distribution"


def distribute(loader: Loader) -> Loader:
    """Return a loader that hands out this worker's share of the data.

    All workers draw the same order.  Each takes batches of the loader's size (the default), or a share of each batch
    (`UNDERTOW_BATCH=split`).  Gradients are weighted by the size of the share, so a smaller last batch is exact.  Under
    `torch.no_grad()` the loader yields all data.

    The given loader is not changed.  It is returned itself if there is only one worker or if it is already distributed.
    Raises `ConfigError` before `undertow.init()`, and for loaders that cannot be shared.
    """
    _check(loader)
    distribution = _find_distribution()
    if distribution.size == 1 or getattr(loader, _MARK, None) is distribution:
        return loader
    check_shareable(distribution, loader)
    return distribution.derive(loader)


class Distribution(DataSharing):
    """The data that all workers of one script share, until they leave the job."""

    knows_ranks = True

    def __init__(self, group: Group, *, is_split: bool) -> None:
        numbers = ComputeStream(0)  # rank 0's stream is the script's own, from which every rank draws here
        super().__init__(rank=group.rank, size=group.size, is_split=is_split, numbers=numbers)
        self._group: Group | None = group
        self._classes: dict[type, type] = {}
        self._logged: set[str] = set()
        self._backward: Callable[..., None] | None = None  # the replacement
        self._original_backward: Callable[..., None] = torch.autograd.backward
        self._described = (0, 0)  # the sizes of the loader whose iterator was created last

    @property
    def group(self) -> Group | None:
        return self._group

    def shares(self) -> bool:
        if self._group is None and (_current is not None or process.is_initialized()):
            raise ConfigError(
                "this DataLoader was distributed among workers that have since left the job (undertow.shutdown()): "
                "call undertow.torch.distribute() again"
            )
        return self._group is not None

    def start_sharing(self, description: str) -> None:
        self._log_once(logging.INFO, description)

    def announce(self, message: str) -> None:
        self._log_once(logging.WARNING, message)

    def _log_once(self, level: int, message: str) -> None:
        if self.rank == 0 and message not in self._logged:
            self._logged.add(message)
            log.log(level, "%s", message)

    def start_epoch(self) -> RandomState:
        """Raise `DriftError` if the ranks' loaders differ in size: ranks would wait for each other forever."""
        if self._group is None:
            return capture()
        self._compare(
            "the sizes of the dataset and of the batches of a distributed DataLoader",
            self._described,
            "Give undertow.torch.distribute() the same loader over all of the data on every worker",
        )
        self._resume_drawing()
        return copy_from_first(self._group, capture())

    def end_epoch(self) -> None:
        """Raise `DriftError` if the ranks drew different orders: some samples were left out, others taken twice."""
        order = self.take_order()
        if self._group is not None:
            self._compare(
                "the order of the data",
                (order,),
                "Some samples were left out, others taken twice. Give the generator and sampler of a DataLoader the "
                "same seed on all workers",
            )

    def end(self) -> None:
        """Stop sharing, because the workers leave the job, and restore torch's own backward."""
        self._group = None
        self.take_order()
        if torch.autograd.backward is self._backward:
            torch.autograd.backward = self._original_backward

    def weigh_backward(self) -> None:
        """Replace `torch.autograd.backward`, so that it weighs this rank's shares."""
        if self._backward is None and self._group is not None:
            self._original_backward = find_backward()
            self._backward = torch.autograd.backward = run_backward(self._original_backward, self)

    def derive(self, loader: Loader) -> Loader:
        """Return a loader over the same data, with the same sampler, that hands out shares."""
        kind = type(loader) if getattr(loader, _MARK, None) is None else type(loader).__mro__[1]
        made: Loader = object.__new__(self._derive(kind, self._make_loader_methods))
        vars(made).update(vars(loader), _iterator=None)  # persistent workers belong to one loader
        return made

    def _derive(self, kind: type, make_methods: Callable[[Any], dict[str, Any]]) -> type:
        if kind not in self._classes:
            self._classes[kind] = type(f"Distributed{kind.__name__}", (kind,), make_methods(kind))
        return self._classes[kind]

    def _make_loader_methods(self, kind: Any) -> dict[str, Any]:
        make_iterator = iterate(kind._get_iterator, self)

        def get_iterator(loader: Any) -> Any:
            self._described = _describe_sizes(loader)
            iterator = make_iterator(loader)
            iterator.__class__ = self._derive(type(iterator), self._make_iterator_methods)
            return iterator

        return {
            _MARK: self,
            "_index_sampler": choose_indices(kind._index_sampler, self),
            "_get_iterator": get_iterator,
            "__len__": count_batches(kind.__len__, self),
        }

    def _make_iterator_methods(self, kind: Any) -> dict[str, Any]:
        take = hand_out(kind.__next__, self)
        begin = begin_again(kind._reset, self)

        def take_next(iterator: Any) -> Any:
            self.weigh_backward()
            return take(iterator)

        def reset(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
            self._described = _describe_sizes(loader)
            begin(iterator, loader, *arguments, **options)

        return {"__next__": take_next, "_reset": reset}

    def _compare(self, what: str, numbers: tuple[int, ...], remedy: str) -> None:
        assert self._group is not None
        try:
            compare_tensors([(what, torch.tensor(numbers))], self._group)
        except DriftError as error:
            raise DriftError(f"{error}. {remedy}", tensor=error.tensor, ranks=error.ranks) from None


_current: Distribution | None = None


def has_distributed() -> bool:
    """Return whether the script has distributed a loader among the current workers."""
    return _current is not None


def _find_distribution() -> Distribution:
    """Return the distribution among the current workers."""
    global _current
    if process.is_formed_for_script():
        raise ConfigError("the script has not joined the other workers: call undertow.init() first")
    group = group_for()
    if _current is None or _current.group is not group:
        _forget()
        settings = process.settings() if process.is_initialized() else read_settings(rank=0, world_size=1)
        _current = Distribution(group, is_split=settings.batch is Batch.SPLIT)
        process.at_shutdown(_forget)
    return _current


def _forget() -> None:
    global _current
    if _current is not None:
        distribution, _current = _current, None
        distribution.end()


def _check(loader: object) -> None:
    name = type(loader).__name__
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"distribute takes a torch.utils.data.DataLoader, not {name}")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ConfigError(
            f"{name} overrides __iter__, so it cannot be shared: give distribute a torch.utils.data.DataLoader"
        )
    sampler = find_sampler(loader)
    if any(isinstance(one, DistributedSampler) for one in (sampler, getattr(sampler, "sampler", None))):
        raise ConfigError(
            "this DataLoader has a DistributedSampler, which already gives each worker its share: use the loader as it "
            "is, or create one with shuffle=True and distribute that one"
        )


def _describe_sizes(loader: Any) -> tuple[int, int]:
    """Return the sizes of the dataset and of a batch; 0 if unknown."""
    has_length = not is_stream(loader) and hasattr(loader.dataset, "__len__")
    return len(loader.dataset) if has_length else 0, loader.batch_size or 0
