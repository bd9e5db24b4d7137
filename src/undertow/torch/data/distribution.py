"""`distribute`: an ordinary DataLoader hands out this worker's share of every batch.

In: the loader of a script that has joined the other workers itself.  Out: a loader of the same kind over the same data.
Parts and weights are those of a single-process script: the stand-ins that are patched into torch's classes there are
methods of subclasses here.  The script's random numbers are left alone: other ranks draw the order from a copy of
rank 0's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, DistributedSampler

from undertow.errors import ConfigError, DriftError
from undertow.runtime import process
from undertow.runtime.group import Group
from undertow.settings import Batch, read_settings
from undertow.torch.data.loaders import check_shareable, find_sampler, is_stream
from undertow.torch.data.randomness import OwnNumbers, State, capture
from undertow.torch.data.sharing import Sharing, copy_from_first
from undertow.torch.data.standins import (
    begin_again,
    choose_indices,
    count_batches,
    find_backward,
    hand_out,
    iterate,
    run_backward,
)
from undertow.torch.groups import group_for
from undertow.torch.replicas import compare_tensors

log = logging.getLogger("undertow")

Loader = TypeVar("Loader", bound=DataLoader[Any])
_MARK = "_undertow_distribution"


def distribute(loader: Loader) -> Loader:
    """Return a loader that hands out this worker's share of the data.

    All workers draw the same order, and each takes its part of it: batches of the loader's size (the default), or its
    part of each batch (`UNDERTOW_BATCH=split`).  Gradients count as much as the part they come from, so a smaller last
    batch is exact.  Iterated over under `torch.no_grad()` the loader is whole.

    The given loader stays as it is.  Among one worker, or if it is distributed already, it is returned itself.
    Raises `ConfigError` before `undertow.init()`, and for loaders that cannot be shared.
    """
    _check(loader)
    distribution = _find_distribution()
    if distribution.size == 1 or getattr(loader, _MARK, None) is distribution:
        return loader
    check_shareable(distribution, loader)
    return distribution.derive(loader)


class Distribution(Sharing):
    """The data of one script that all workers share.  It is over when they part."""

    shares_sequential = True
    knows_ranks = True

    def __init__(self, group: Group, *, is_split: bool) -> None:
        numbers = OwnNumbers(0)  # those of the script, on every rank
        super().__init__(rank=group.rank, size=group.size, is_split=is_split, numbers=numbers)
        self._group: Group | None = group
        self._classes: dict[type, type] = {}
        self._said: set[str] = set()
        self._backward: Callable[..., None] | None = None  # ours, in the place of torch's
        self._torchs: Callable[..., None] = torch.autograd.backward
        self._described = (0, 0)  # the loader whose iterator was made last

    @property
    def group(self) -> Group | None:
        return self._group

    def shares(self) -> bool:
        if self._group is None and (_current is not None or process.is_initialized()):
            raise ConfigError(
                "this DataLoader was distributed among workers that have parted since (undertow.shutdown()): "
                "call undertow.torch.distribute() again"
            )
        return self._group is not None

    def start_sharing(self, words: str) -> None:
        if self.rank == 0 and words not in self._said:
            self._said.add(words)
            log.info("%s", words)

    def say(self, words: str) -> None:
        if self.rank == 0 and words not in self._said:
            self._said.add(words)
            log.warning("%s", words)

    def start_epoch(self) -> State:
        """Raises `DriftError` if the loaders of the ranks differ in size: they would wait for each other in vain."""
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
        """Raises `DriftError` if the ranks have drawn different orders: samples were left out, others taken twice."""
        order = self.take_order()
        if self._group is not None:
            self._compare(
                "the order of the data",
                (order,),
                "Samples were left out and others taken twice. Give generators and samplers of a DataLoader the same "
                "seed on all workers",
            )

    def end(self) -> None:
        """The workers have parted: loaders are whole from now on."""
        self._group = None
        self.take_order()
        if torch.autograd.backward is self._backward:
            torch.autograd.backward = self._torchs

    def weigh_backward(self) -> None:
        """From the first part on let backward passes weigh this rank's parts."""
        if self._backward is None and self._group is not None:
            self._torchs = find_backward()
            self._backward = torch.autograd.backward = run_backward(self._torchs, self)

    def derive(self, loader: Loader) -> Loader:
        """A loader over the same data, by the same sampler, that hands out shares."""
        kind = type(loader) if getattr(loader, _MARK, None) is None else type(loader).__mro__[1]
        made: Loader = object.__new__(self._derive(kind, self._make_loader_methods))
        vars(made).update(vars(loader), _iterator=None)  # workers that stay are each loader's own
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
            raise DriftError(f"{error}. {remedy}") from None


_current: Distribution | None = None


def _find_distribution() -> Distribution:
    """That of the workers that are joined now."""
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
            f"{name} iterates in a way of its own (it has an __iter__), so it cannot be shared: give distribute a "
            "torch.utils.data.DataLoader"
        )
    sampler = find_sampler(loader)
    if any(isinstance(one, DistributedSampler) for one in (sampler, getattr(sampler, "sampler", None))):
        raise ConfigError(
            "this DataLoader has a DistributedSampler, which gives each worker its part already: use the loader as it "
            "is, or make it with shuffle=True and distribute that"
        )


def _describe_sizes(loader: Any) -> tuple[int, int]:
    """Of the dataset and of a batch; 0 where that is not known."""
    has_length = not is_stream(loader) and hasattr(loader.dataset, "__len__")
    return len(loader.dataset) if has_length else 0, loader.batch_size or 0
