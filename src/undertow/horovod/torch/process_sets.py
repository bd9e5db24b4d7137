"""Horovod's process sets: subsets of the ranks, each of which makes calls of its own.

In: lists of ranks, the same on all ranks of the job.  Out: a number for each set, and a group on its ranks.
A set's group has its own connections and its own coordinator, the first of its ranks.  Other ranks are therefore not
involved in its calls, and calls of the same name can be pending in several sets at once.
"""

from __future__ import annotations

import operator
import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.interface import Group
from undertow.errors import name_ranks
from undertow.horovod.errors import BadCall, translated
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.transfers import Blobs, exchange_blobs
from undertow.runtime import process
from undertow.runtime.subsets import form_subset

DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"


class RankSets:
    """The numbers of the process sets of a job with `size` ranks: pure, the same on all ranks.

    Sets are numbered as in Horovod: 0 is the set of all ranks, and the number that was removed first is reused first.
    The ranks of each set are in ascending order.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranks = {0: list(range(size))}
        self._free: deque[int] = deque()  # numbers of removed sets
        self.added = 0  # number of sets added so far, removed ones included

    def find_fault(self, ranks: Sequence[int]) -> str:
        """Return why these ranks cannot become a set; empty if they can."""
        twice = [rank for rank, count in Counter(ranks).items() if count > 1]
        strangers = [rank for rank in ranks if not 0 <= rank < self._size]
        if not ranks:
            return "a process set of no ranks: give it at least one"
        if twice:
            return f"a process set has rank {twice[0]} more than once"
        if strangers:
            return f"there is no rank {strangers[0]}: ranks are 0 to {self._size - 1}"
        if list(ranks) in self._ranks.values():
            return f"the process set of {name_ranks(ranks)} already exists: two sets cannot have the same ranks"
        return ""

    def add(self, ranks: Sequence[int]) -> int:
        """Add a set that `find_fault` has accepted; return its number."""
        number = self._free.popleft() if self._free else len(self._ranks)
        self._ranks[number] = list(ranks)
        self.added += 1
        return number

    def remove(self, number: int) -> None:
        del self._ranks[number]
        self._free.append(number)

    def to_dict(self) -> dict[int, list[int]]:
        """Return the ranks of each set by its number."""
        return {number: list(ranks) for number, ranks in sorted(self._ranks.items())}


class ProcessSet:
    """A subset of the ranks.  It gets a number when it is given to `hvd.init` or `hvd.add_process_set`."""

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._ranks = _read_ranks(ranks_or_comm)

    @property
    def ranks(self) -> list[int]:
        """The ranks in ascending order."""
        return list(self._ranks)

    def size(self) -> int | None:
        """Return the number of ranks; None if the set has no number."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this rank's index among the ranks of the set; None if the set has no number."""
        return None if self.process_set_id is None else group_of(self).rank

    def included(self) -> bool:
        return basics.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _AllRanks(ProcessSet):
    """The set of all ranks of the job."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int]:
        """All ranks; empty before `hvd.init`."""
        return list(range(basics.size())) if basics.is_initialized() else []

    def size(self) -> int:
        return basics.size()

    def rank(self) -> int:
        return basics.rank()


def _read_ranks(given: Any) -> list[int]:
    try:
        return sorted(operator.index(rank) for rank in given)
    except TypeError:
        raise BadCall(f"ProcessSet takes a list of ranks, not {given!r}; MPI communicators are not supported") from None


global_process_set = _AllRanks()
_sets: dict[int, ProcessSet] = {}  # by number, except the set of all ranks
_names: dict[int, str] = {}  # of their groups, by number
_numbers: RankSets | None = None
_is_compared = False  # all ranks have compared the sets that they gave to `hvd.init`


def find_rank_sets() -> RankSets:
    """Return the process sets of this job."""
    global _numbers
    if _numbers is None:
        _numbers = RankSets(basics.size())
        process.at_shutdown(_forget)
    return _numbers


def _forget() -> None:
    global _numbers, _is_compared
    _numbers, _is_compared = None, False
    for one in _sets.values():
        one.process_set_id = None
    _sets.clear()
    _names.clear()


# The group that makes a call


def find_group(process_set: Any) -> Group | None:
    """Return the group that makes the calls of this set; None if this rank is not in it."""
    world = basics.group()
    number = _find_number(process_set)
    if number == 0:
        return world
    if number is None:
        raise BadCall(
            f"{process_set} is not a process set that was given to hvd.init() or hvd.add_process_set(), "
            "or it was removed"
        )
    return process.find_group(_names[number]) if world.rank in _sets[number].ranks else None


def _find_number(process_set: Any) -> int | None:
    """Return the number of this set, which may be a copy; None if it has none or was removed.

    Ranks are compared, because numbers of removed sets are reused, and a copy of a removed set may still have one.
    """
    number: int | None = getattr(process_set, "process_set_id", None)
    if number is None or number == 0:
        return number
    return number if number in _sets and _sets[number].ranks == process_set.ranks else None


def group_of(process_set: Any) -> Group:
    """Return the group that makes the calls of this set; raise `BadCall` if this rank is not in it."""
    group = find_group(process_set)
    if group is None:
        raise BadCall(
            f"rank {basics.rank()} is not in the process set of {name_ranks(process_set.ranks)}: only ranks of the set "
            "make its calls"
        )
    return group


def own_groups() -> list[Group]:
    """Return the groups of all sets that contain this rank, in the order of their numbers."""
    groups = [find_group(one) for _, one in sorted(_sets.items())]
    return [group for group in groups if group is not None]


# Adding and removing sets


def register_static(given: Any) -> None:
    """Number the sets that all ranks have passed to `hvd.init`."""
    global _is_compared
    is_dynamic = isinstance(given, str) and given.lower() == "dynamic"
    if is_dynamic:
        os.environ[DYNAMIC] = "1"
    numbers = find_rank_sets()
    sets = [one for one in _read_sets(None if is_dynamic else given) if not _reuse_number(one)]
    if sets or not _is_compared:
        _is_compared = True
        details = ", ".join(str(one.ranks) for one in sets)
        _compare("hvd.init", f"process sets {details}" if details else "no process sets")
        for one in sets:
            if fault := numbers.find_fault(one.ranks):
                raise BadCall(f"hvd.init(): {fault}")
        for one in sets:
            _register(one, numbers)


def _read_sets(given: Any) -> list[ProcessSet]:
    if given is None:
        return []
    sets: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    for index, one in enumerate(sets):
        if not isinstance(one, ProcessSet):
            raise BadCall(f'hvd.init() takes a list of hvd.ProcessSet, or "dynamic", as process_sets, not {given!r}')
        if any(one.ranks == other.ranks for other in sets[:index]):
            raise BadCall(f"hvd.init(): the process set of {name_ranks(one.ranks)} is in the list twice")
    return sets


def _reuse_number(one: ProcessSet) -> bool:
    """Give this set the number of an existing set with the same ranks; return whether there is one."""
    number = next((number for number, known in _sets.items() if known.ranks == one.ranks), None)
    if number is None:
        return False
    one.process_set_id = number
    return True


def add_process_set(process_set: Any) -> ProcessSet:
    """Add a set of these ranks.  All ranks of the job must add the same sets in the same order."""
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _require_dynamic("adding")
    numbers = find_rank_sets()
    _compare("add_process_set", f"process set {one.ranks}")
    fault = numbers.find_fault(one.ranks)
    if fault:
        raise BadCall(fault)
    _register(one, numbers)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set and return whether it existed.  All ranks of the job must call this; the set of all ranks stays."""
    if process_set.process_set_id in (None, 0):
        return False
    _require_dynamic("removing")
    number = _find_number(process_set)
    if number is None:
        process_set.process_set_id = None  # a copy of a removed set
        return False
    own = find_group(process_set)
    if own is not None:
        handles.end_all(own)
    _compare("remove_process_set", f"process set {process_set.ranks}")
    find_rank_sets().remove(number)
    _sets.pop(number).process_set_id = process_set.process_set_id = None
    name = _names.pop(number)
    if own is not None:
        process.remove_group(name, f"the process set of {name_ranks(process_set.ranks)} was removed: it takes no calls")
    return True


def _require_dynamic(doing: str) -> None:
    basics.group()
    if os.environ.get(DYNAMIC, "0").strip() in ("", "0"):
        raise BadCall(
            f"{doing} process sets after hvd.init() needs {DYNAMIC}=1 in the environment of all ranks, or "
            'hvd.init(process_sets="dynamic")'
        )


def _register(one: ProcessSet, numbers: RankSets) -> None:
    number = numbers.add(one.ranks)
    name = f"process-set-{numbers.added}"
    try:
        with translated():
            form_subset(name, one.ranks, _exchange)
    except BaseException:
        numbers.remove(number)
        raise
    one.process_set_id = number
    _sets[number], _names[number] = one, name


def _compare(kind: str, details: str) -> None:
    """Synchronise all ranks of the job; raise an error on all of them if their details differ."""
    handles.wait_for_all("ranks", Terms(kind, Route.NOWHERE, details=details), group=basics.group())


def _exchange(title: str, payload: bytes) -> list[bytes]:
    def read(blobs: Blobs) -> list[bytes]:
        return [b"" if blob is None else blob.tobytes() for blob in blobs]

    blob = np.array(bytearray(payload), np.uint8)
    handle = exchange_blobs(title, Terms("process_set", Route.EVERYONE), [blob], read, group=basics.group())
    received: list[bytes] = handles.synchronize(handle)
    return received
