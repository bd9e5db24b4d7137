"""Operations under way, and the numbers that scripts know them by.

In: a named call and what to do when it has ended.  Out: a number for `poll` and `synchronize`.
Results are put in place in the thread that asks for them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from undertow.coordinator.terms import Terms
from undertow.core.flow import Contribution
from undertow.horovod.errors import BadCall, translated
from undertow.horovod.torch import basics
from undertow.plan.slicing import Slice
from undertow.runtime.calls import Answer, NamedCall
from undertow.runtime.group import Group
from undertow.runtime.own_calls import note_call

Contribute = Callable[[Sequence[Slice], Answer], list[Contribution]]


class Operation:
    """One call; `finish` puts its result in place, once, and returns it."""

    def __init__(self, group: Group, call: NamedCall, finish: Callable[[], Any]) -> None:
        self.key = group, call.name
        self._group = group
        self._call = call
        self._finish = finish
        self._result: Any = None
        self._is_finished = False

    @property
    def is_done(self) -> bool:
        """Whether `take` would return, or raise, at once."""
        return self._call.done.is_set() or self._group.waiters.error is not None

    def take(self) -> Any:
        """The result, once it is there."""
        if not self._is_finished:
            with translated():
                self._group.wait_for_call(self._call)
            self._result = self._finish()
            self._is_finished = True
        return self._result

    def unwrap(self) -> None:
        """From now on the result is the only item of what `finish` returns."""
        finish = self._finish
        self._finish = lambda: finish()[0]

    def land(self) -> None:
        """Put the result in place if it is there and there is one."""
        if self._call.done.is_set() and not self._call.refusal and self._group.waiters.error is None:
            self.take()


_lock = threading.Lock()
_numbers = itertools.count()
_lap = 0
_unnamed: dict[Group, Iterator[str]] = {}  # names for calls that have none
_operations: dict[int, Operation] = {}
_under_way: dict[tuple[Group, str], Operation] = {}  # by name; some of them may be done


def start(
    kind: str, name: str | None, terms: Terms, contribute: Contribute, finish: Callable[[], Any], *, group: Group
) -> int:
    """Make this call with all ranks of the group; the result of `finish` is what `synchronize` returns.

    Calls without a name are matched by their number, whatever they do: so ranks that are out of step learn
    of it at once.
    """
    with _lock:
        title = f"{kind}.{name}" if name else next(_unnamed.setdefault(group, _name_calls()))
        earlier = _under_way.get((group, title))
        if earlier is not None and not earlier.is_done:
            raise BadCall(f"{title!r} is under way already: wait for it, or give the second one another name")
        call = NamedCall(title, terms, contribute)
        operation = _under_way[group, title] = Operation(group, call, finish)
    note_call()
    with translated():
        group.call(call)
    handle = next(_numbers)
    _operations[handle] = operation
    return handle


def unwrap(handle: int) -> None:
    """The operation's list has one item: `synchronize` shall give that."""
    _operations[handle].unwrap()


def poll(handle: int) -> bool:
    """Whether the operation has ended: then its result is in place, and `synchronize` returns at once."""
    operation = _operations.get(handle)
    if operation is None:
        return True
    if not operation.is_done:
        return False
    operation.land()
    return True


def synchronize(handle: Any) -> Any:
    """Wait for an operation; returns its result, or None for one that was waited for before."""
    if callable(handle):  # a sparse one
        return handle()
    operation = _operations.pop(handle, None)
    if operation is None:
        return None
    try:
        return operation.take()
    finally:
        with _lock:
            if _under_way.get(operation.key) is operation:
                del _under_way[operation.key]


def count_anew() -> None:
    """All ranks are at the same point: calls without a name are matched from here on, however many there were."""
    global _lap
    _lap += 1
    _unnamed.clear()


def _name_calls() -> Iterator[str]:
    lap = _lap
    return (f"noname.{lap}.{number}" for number in itertools.count())


def end_all(group: Group) -> None:
    """This group is about to go: put the results of its operations in place; refused while one is under way."""
    own = [operation for operation in _operations.values() if operation.key[0] is group]
    late = sorted(operation.key[1] for operation in own if not operation.is_done)
    if late:
        raise BadCall(f"{late[0]!r} is under way in this process set: synchronize it before the set is removed")
    for operation in own:
        operation.land()
    with _lock:
        _unnamed.pop(group, None)
        for key in [key for key in _under_way if key[0] is group]:
            del _under_way[key]


def _forget() -> None:
    global _lap
    _lap = 0
    count_anew()
    _operations.clear()
    _under_way.clear()


_forget()
basics.at_shutdown(_forget)
