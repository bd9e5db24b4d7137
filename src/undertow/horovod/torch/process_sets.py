"""Horovod's process sets: some of the ranks, which make calls of their own.

In: lists of ranks, the same on all ranks of the job.  Out: a number for each set, and on its ranks a group.
A set's group has its own connections and its own coordinator, the first of its ranks: so the other ranks have no
part in its calls, and the same name can be under way in several sets at once.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from undertow.coordinator.terms import Route, Terms
from undertow.errors import UndertowError
from undertow.horovod.errors import BadCall, translated
from undertow.horovod.rank_sets import RankSets, name_ranks
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.transfers import Gathered
from undertow.runtime import process
from undertow.runtime.group import Group
from undertow.runtime.subsets import form_subset

DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"


class ProcessSet:
    """Some ranks of the job.  It has a number once it was given to `hvd.init` or `hvd.add_process_set`."""

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._ranks = _read_ranks(ranks_or_comm)

    @property
    def ranks(self) -> list[int]:
        """In ascending order."""
        return list(self._ranks)

    def size(self) -> int | None:
        """How many ranks it has; None without a number."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's place among those of the set, from 0; None without a number."""
        return None if self.process_set_id is None else group_of(self).rank

    def included(self) -> bool:
        """Whether this rank is in it."""
        return basics.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _AllRanks(ProcessSet):
    """All ranks of the job, however many there are."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int]:
        """Empty before `hvd.init`."""
        return list(range(basics.size())) if basics.is_initialized() else []

    def size(self) -> int:
        return basics.size()

    def rank(self) -> int:
        return basics.rank()


def _read_ranks(given: Any) -> list[int]:
    try:
        return sorted(operator.index(rank) for rank in given)
    except TypeError:
        raise BadCall(f"ProcessSet takes a list of ranks, not {given!r}; MPI communicators are not there") from None


global_process_set = _AllRanks()
_sets: dict[int, ProcessSet] = {}  # by number, without that of all ranks
_names: dict[int, str] = {}  # of their groups
_numbers: RankSets | None = None
_is_compared = False  # all ranks have told each other which sets they begin with


def _find_numbers() -> RankSets:
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


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every set by its number."""
    return _find_numbers().to_dict()


# Which group makes a call


def find_group(process_set: Any) -> Group | None:
    """The workers that make the calls of this set; None if this rank is not in it."""
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
    """Return the number of this set, or of the one that it is a copy of; None if there is none.

    A copy of a set that was removed may have the number of another one.
    """
    number: int | None = getattr(process_set, "process_set_id", None)
    if number is None or number == 0:
        return number
    return number if number in _sets and _sets[number].ranks == process_set.ranks else None


def group_of(process_set: Any) -> Group:
    """The workers that make the calls of this set; refused on ranks that are not in it."""
    group = find_group(process_set)
    if group is None:
        raise BadCall(
            f"rank {basics.rank()} is not in the process set of {name_ranks(process_set.ranks)}: only its ranks make "
            "its calls"
        )
    return group


def own_groups() -> list[Group]:
    """Return the groups of all sets that this rank is in, in the order of their numbers."""
    groups = [find_group(one) for _, one in sorted(_sets.items())]
    return [group for group in groups if group is not None]


# Sets come and go


def register_static(given: Any) -> None:
    """All ranks have called `hvd.init` with these sets: they have numbers from now on."""
    global _is_compared
    is_dynamic = isinstance(given, str) and given.lower() == "dynamic"
    if is_dynamic:
        os.environ[DYNAMIC] = "1"
    numbers = _find_numbers()
    sets = [one for one in _read_sets(None if is_dynamic else given) if not _take_over(one)]
    if sets or not _is_compared:
        _is_compared = True
        details = ", ".join(f"[{', '.join(map(str, one.ranks))}]" for one in sets)
        _compare("hvd.init", f"process sets {details}" if details else "no process sets")
        _check_all(numbers, sets)
        for one in sets:
            _register(one, numbers)


def _read_sets(given: Any) -> list[ProcessSet]:
    if given is None:
        return []
    sets: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    for place, one in enumerate(sets):
        if not isinstance(one, ProcessSet):
            raise BadCall(f'hvd.init() takes a list of hvd.ProcessSet, or "dynamic", as process_sets, not {given!r}')
        if any(one.ranks == other.ranks for other in sets[:place]):
            raise BadCall(f"hvd.init(): the process set of {name_ranks(one.ranks)} is there already, in the same list")
    return sets


def _take_over(one: ProcessSet) -> bool:
    """Whether a set of these ranks is there: then it goes by this name, too."""
    number = next((number for number, known in _sets.items() if known.ranks == one.ranks), None)
    if number is None:
        return False
    one.process_set_id = number
    return True


def _check_all(numbers: RankSets, sets: list[ProcessSet]) -> None:
    trial = RankSets(basics.size())
    for ranks in list(numbers.to_dict().values())[1:]:
        trial.add(ranks)
    for one in sets:
        fault = trial.find_fault(one.ranks)
        if fault:
            raise BadCall(f"hvd.init(): {fault}")
        trial.add(one.ranks)


def add_process_set(process_set: Any) -> ProcessSet:
    """Make a set of these ranks.  All ranks of the job call it alike, in the same order."""
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _require_dynamic("adding")
    numbers = _find_numbers()
    _compare("add_process_set", name_ranks(one.ranks))
    fault = numbers.find_fault(one.ranks)
    if fault:
        raise BadCall(fault)
    _register(one, numbers)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take a set away; returns whether there was one.  All ranks of the job call it alike; that of all ranks stays."""
    if process_set.process_set_id in (None, 0):
        return False
    _require_dynamic("removing")
    number = _find_number(process_set)
    if number is None:
        process_set.process_set_id = None  # a copy of one that was removed
        return False
    own = find_group(process_set)
    if own is not None:
        handles.end_all(own)
    _compare("remove_process_set", name_ranks(process_set.ranks))
    _find_numbers().remove(number)
    _sets.pop(number).process_set_id = process_set.process_set_id = None
    name = _names.pop(number)
    if own is not None:
        process.remove_group(name)
        words = f"the process set of {name_ranks(process_set.ranks)} was removed: nothing can be reduced in it any more"
        own.waiters.abandon(UndertowError(words))
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
    """Come together with all ranks; refused on all of them if they differ."""
    terms = Terms(kind, Route.NOWHERE, details=details)
    world = basics.group()
    handles.synchronize(handles.start(kind, "ranks", terms, lambda slices, answer: [], lambda: None, group=world))


def _exchange(title: str, payload: bytes) -> list[bytes]:
    world = basics.group()
    transfer = Gathered(world, np.array(bytearray(payload), np.uint8))

    def end() -> list[bytes]:
        with transfer.received() as pieces:
            return [b"" if piece is None else piece.tobytes() for piece in pieces]

    terms = Terms("process_set", Route.EVERYONE)
    handle = handles.start("process_set", title, terms, transfer.contribute, end, group=world)
    told: list[bytes] = handles.synchronize(handle)
    return told
