"""Pending operations, and the handles that scripts get for them.

In: a named call, and a function that finishes it.  Out: a handle: a number for `poll` and `synchronize`.
Results are put in place in the thread that waits for them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from undertow.engine.client.calls import Answer, NamedCall
from undertow.engine.coordinator.terms import Terms
from undertow.engine.core.flow import Contribution
from undertow.engine.core.slicing import Slice
from undertow.engine.interface import Group
from undertow.horovod.errors import BadCall, translated
from undertow.runtime import process

Contribute = Callable[[Sequence[Slice], Answer], list[Contribution]]


class Operation:
    """A pending call; `finish` puts the result in place and returns it, and is called once."""

    def __init__(self, group: Group, call: NamedCall, finish: Callable[[], Any]) -> None:
        self.key = group, call.name
        self._group = group
        self._call = call
        self._finish = finish
        self._result: Any = None
        self._is_finished = False

    @property
    def is_done(self) -> bool:
        """Whether `take` would return or raise at once."""
        return self._call.done.is_set() or self._group.error is not None

    def take(self) -> Any:
        if not self._is_finished:
            with translated():
                self._group.calls.wait_for(self._call)
            self._result = self._finish()
            self._is_finished = True
        return self._result

    def unwrap(self) -> None:
        """Use the only item of the list that `finish` returns as the result."""
        finish = self._finish
        self._finish = lambda: finish()[0]

    def land(self) -> None:
        """Put the result in place if the call has succeeded."""
        if self._call.done.is_set() and not self._call.mismatch and self._group.error is None:
            self.take()


_lock = threading.Lock()
_numbers = itertools.count()
_pid = 0  # of the process that has started the operations
_generation = 0  # counts the times that all ranks have restarted the numbering of calls without a name
_unnamed: dict[Group, Iterator[str]] = {}  # names for calls without one
_operations: dict[int, Operation] = {}
_under_way: dict[tuple[Group, str], Operation] = {}  # by name; some may already be done


def start(name: str | None, terms: Terms, contribute: Contribute, finish: Callable[[], Any], *, group: Group) -> int:
    """Start this call with all ranks of the group; `synchronize` returns the result of `finish`.

    Calls without a name are numbered across all kinds of calls, so ranks that make different calls notice it at once.
    """
    _end_with_job()
    with _lock:
        title = f"{terms.kind}.{name}" if name else next(_unnamed.setdefault(group, _name_calls()))
        earlier = _under_way.get((group, title))
        if earlier is not None and not earlier.is_done:
            raise BadCall(f"{title!r} is already pending: wait for it, or give the second call another name")
        call = NamedCall(title, terms, contribute)
        operation = _under_way[group, title] = Operation(group, call, finish)
    process.note_own_call()
    with translated():
        group.calls.begin(call)
    handle = next(_numbers)
    _operations[handle] = operation
    return handle


def unwrap(handle: int) -> int:
    """Let `synchronize` return the only item of the operation's list; return the same handle."""
    _operations[handle].unwrap()
    return handle


def poll(handle: int) -> bool:
    """Return whether the operation has ended; if so, its result is in place, and `synchronize` returns at once."""
    operation = _operations.get(handle)
    if operation is None:
        return True
    if not operation.is_done:
        return False
    operation.land()
    return True


def synchronize(handle: Any) -> Any:
    """Wait for an operation and return its result; None if a call has already returned it."""
    if callable(handle):  # from a sparse allreduce
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


def wait_for_all(name: str, terms: Terms, *, group: Group) -> None:
    """Wait until all ranks of the group have made this call; raise an error on all of them if its terms differ."""
    synchronize(start(name, terms, lambda slices, answer: [], lambda: None, group=group))


def restart_numbering() -> None:
    """Number calls without a name from 0 again, because all ranks are at the same point of the script."""
    global _generation
    _end_with_job()
    _generation += 1
    _unnamed.clear()


def _name_calls() -> Iterator[str]:
    generation = _generation
    return (f"noname.{generation}.{number}" for number in itertools.count())


def end_all(group: Group) -> None:
    """Put the results of this group's operations in place before it is removed; refuse while one is pending."""
    own = [operation for operation in _operations.values() if operation.key[0] is group]
    late = sorted(operation.key[1] for operation in own if not operation.is_done)
    if late:
        raise BadCall(f"{late[0]!r} is pending in this process set: synchronize it before removing the set")
    for operation in own:
        operation.land()
    with _lock:
        _unnamed.pop(group, None)
        for key in [key for key in _under_way if key[0] is group]:
            del _under_way[key]


def _end_with_job() -> None:
    global _pid
    _pid = os.getpid()
    process.at_shutdown(_forget)


def _forget() -> None:
    """Forget the operations when this process leaves the job; a process forked from it cannot wait for them."""
    global _generation
    if os.getpid() == _pid:
        _generation = 0
        _unnamed.clear()
        _operations.clear()
        _under_way.clear()
