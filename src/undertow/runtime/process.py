"""State of the process: the engine thread and the groups that it serves.

In: `init`, or a framework's process group.  Out: groups, formed when first needed.
Importing this module starts nothing; `shutdown` and the end of the process end everything.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from undertow.engine.client import formation
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.coordinator.rendezvous import RendezvousServer, attend, parse_address
from undertow.engine.coordinator.rendezvous_table import WORKERS_MET
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.routes import route_to
from undertow.errors import ConfigError, DriftError, MismatchError, PeerLost, UndertowError
from undertow.hidden import read_environment
from undertow.runtime import recording, sharing
from undertow.runtime.foreign import refuse_processes
from undertow.runtime.launcher_notes import Mark, note_loss, waiting
from undertow.settings import Settings, read_settings

log = logging.getLogger("undertow")

_lock = threading.RLock()
_loop: Loop | None = None
_settings: Settings | None = None
_groups: dict[object, ConnectedGroup] = {}
_formed = 0  # number of successful calls of `init`, the same on all ranks; a failed call may be repeated
_DEFAULT = "default"
ANNOUNCE_S = 5.0
EXCEPTION_EXIT_CODE = 1  # Python's exit code after an uncaught exception
_give_way: Callable[[str], None] | None = None  # set if the default group was formed for a script that did not join


class Rendezvous(Protocol):
    """Rendezvous of a framework, through which its workers find each other."""

    @property
    def has_joined(self) -> bool:
        """Whether the script has already joined the other workers through it."""

    @property
    def is_available(self) -> bool:
        """Whether the workers can find each other through it."""

    def form(self, name: str, settings: Settings, loop: Loop) -> ConnectedGroup:
        """Form the group of all workers."""


def init(rendezvous: Rendezvous, **arguments: Any) -> None:
    """Join the other workers of this job, through `rendezvous` if our launcher did not start the job.

    A second call has no effect.
    """
    global _settings, _formed
    give_way("undertow.init()")
    with _lock:
        if _DEFAULT in _groups:
            return
        settings = read_settings(**arguments)
        if arguments.get("world_size") is None and not rendezvous.has_joined:
            refuse_processes(read_environment(), script=os.path.basename(sys.argv[0]) or "train.py")
        form = functools.partial(_form_default, settings, rendezvous)
        add_group(_DEFAULT, lambda: form_recorded(settings, form, size=settings.world_size))
        _settings = settings
        _formed += 1


def init_for_script(rendezvous: Rendezvous, leave: Callable[[str], None], **arguments: Any) -> None:
    """Join the other workers on behalf of a script.

    If the script later joins them itself, `leave` is called first, with the name of the call by which it joins.
    """
    global _give_way
    init(rendezvous, **arguments)
    _give_way = leave


def give_way(call: str) -> None:
    """Leave the group that was formed on behalf of the script, which now joins itself with this call."""
    global _give_way
    leave, _give_way = _give_way, None
    if leave is not None:
        leave(call)


def is_formed_for_script() -> bool:
    """Return whether the default group was formed on behalf of a script that has not joined itself."""
    return _give_way is not None


def is_joined_by_script() -> bool:
    """Return whether the script has called `init`, under any name, and has not called `shutdown` yet."""
    return is_initialized() and not is_formed_for_script()


def default_group() -> ConnectedGroup:
    """Return the group that `init` formed; raise `ConfigError` if there is none."""
    try:
        return _groups[_DEFAULT]
    except KeyError:
        raise ConfigError("undertow is not initialised: call undertow.init() first") from None


def settings() -> Settings:
    default_group()
    assert _settings is not None
    return _settings


def is_initialized() -> bool:
    return _DEFAULT in _groups


def add_group(name: object, form: Any) -> ConnectedGroup:
    """Return the group of this name; form it if there is none."""
    with _lock:
        if name not in _groups:
            _groups[name] = form()
        return _groups[name]


def find_group(name: object) -> ConnectedGroup:
    """Return the group of this name, which must be formed."""
    return _groups[name]


def remove_group(name: object, reason: str = "") -> None:
    """Leave the group of this name in an orderly way; later uses of it raise the reason."""
    with _lock:
        group = _groups.pop(name)
    group.close()
    if reason:
        group.waiters.abandon(UndertowError(reason))


def form_recorded(settings: Settings, form: Callable[[], ConnectedGroup], *, size: int) -> ConnectedGroup:
    """Form a group of all workers and begin to record this one if the settings request it."""
    recording.prepare(settings)
    # If the script has chosen another size, the group does not have all workers that were started.
    is_all = read_environment().get("WORLD_SIZE") == str(size)
    mark, then = (Mark.WAITS_FOR_ALL, Mark.MET) if is_all else (Mark.WAITS, Mark.NONE)
    try:
        with waiting(settings.start_marks, settings.local_rank, mark, then=then):
            group = form()
    except BaseException:
        recording.give_up()
        raise
    try:
        recording.begin(settings, group)
    except BaseException as error:
        group.close(f"it could not join: {error}")
        raise
    if group.rank == 0:
        _announce(settings, group)
    return group


def _announce(settings: Settings, group: ConnectedGroup) -> None:
    """Report to the launchers of several hosts that the workers have met and will notice losses themselves."""
    if settings.rendezvous and settings.local_world_size < group.size:
        where, token = settings.rendezvous, settings.token.encode()
        with contextlib.suppress(UndertowError):  # a launcher that has ended does not need to know
            attend(where, token, name=WORKERS_MET, rank=0, size=1, payload=b"", timeout_s=ANNOUNCE_S)


def loop() -> Loop:
    """Return the engine thread's loop, which is started on the first call."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = Loop()
            _loop.start()
            _watch_process()
        return _loop


def note_own_call() -> None:
    """Count a collective that the script itself calls, on the key-value store or under Horovod's names."""
    global _own_calls
    _own_calls += 1


def count_own_calls() -> int:
    return _own_calls


_own_calls = 0


def find_error() -> UndertowError | None:
    """Return the error of a failed group, if there is one."""
    return next((group.error for group in _groups.values() if group.error is not None), None)


def shutdown(error: str = "", exit_code: int | None = None) -> None:
    """Leave all groups and end the engine thread.  Never hangs, never raises.

    The other workers are sent `error`, the reason why this process ends, and its `exit_code` if its script failed.
    """
    global _loop, _settings, _give_way
    with _lock:
        groups, _settings, _give_way = list(_groups.values()), None, None
        _groups.clear()
        recording.announce_end()
        sharing.close_all()  # first, because leaving may take long and needs no device
        for group in groups:
            group.leave(error, exit_code)  # all at once, because other ranks may have them in another order
        for group in groups:
            group.close(error, exit_code)
        _run_endings()
        if _loop is not None:
            _loop.stop()
            _loop = None


def at_shutdown(forget: Callable[[], None]) -> None:
    """Call `forget` once, when this process has left its groups or in a forked child, which has none."""
    if forget not in _endings:
        _endings.append(forget)


_endings: list[Callable[[], None]] = []


def _run_endings() -> None:
    while _endings:
        _endings.pop()()


def _form_default(settings: Settings, rendezvous: Rendezvous) -> ConnectedGroup:
    name = f"workers-{_formed}"
    if settings.rendezvous and settings.world_size > 1:
        meet, master = _meet_at(settings.rendezvous, name, settings), parse_address(settings.rendezvous)[0]
    elif settings.world_size == 1 and not rendezvous.has_joined:
        meet, master = (lambda payload: [payload]), "127.0.0.1"
    elif rendezvous.is_available:
        return rendezvous.form(name, settings, loop())
    else:
        return _form_at_master(name, settings)
    address = settings.address or route_to(master)
    return formation.form(meet, name=name, settings=settings, loop=loop(), address=address)


def _form_at_master(name: str, settings: Settings) -> ConnectedGroup:
    """Form the group without our launcher: rank 0 serves the rendezvous at MASTER_ADDR and MASTER_PORT."""
    if not settings.master_port:
        raise ConfigError(
            f"WORLD_SIZE is {settings.world_size}, but neither MASTER_PORT nor a launcher gives an address for the "
            "rendezvous. Start with `undertow run` or torchrun, or set MASTER_ADDR and MASTER_PORT"
        )
    address = f"{settings.master_addr}:{settings.master_port}"
    if settings.rank == 0 and not settings.token:
        log.warning(
            "the job's token is sent to any process that connects to %s; set the same UNDERTOW_TOKEN for all workers",
            address,
        )
    with contextlib.ExitStack() as until_formed:
        if settings.rank == 0:
            server = RendezvousServer(settings.master_addr, settings.master_port, settings.token.encode())
            until_formed.enter_context(contextlib.closing(server))
            server.start()
        meet, own = _meet_at(address, name, settings), settings.address or route_to(settings.master_addr)
        return formation.form(meet, name=name, settings=settings, loop=loop(), address=own)


def _meet_at(address: str, name: str, settings: Settings) -> formation.Meet:
    def meet(payload: bytes) -> list[bytes]:
        return attend(
            address,
            settings.token.encode(),
            name=name,
            rank=settings.rank,
            size=settings.world_size,
            payload=payload,
            timeout_s=settings.start_timeout_s,
        )

    return meet


@functools.cache  # once per process, including its forked children
def _watch_process() -> None:
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)


def blame(reason: str, exit_code: int) -> None:
    """Keep the reason why this process fails with this exit code, for the other workers."""
    global _ending
    _ending = reason, exit_code


_ending: tuple[str, int | None] = "", None


def _at_exit() -> None:
    failure = getattr(sys, "last_value", None)
    if failure is not None:
        note_loss(failure)
    # The other workers know of these three errors, or raise them themselves.
    if failure is None or isinstance(failure, (PeerLost, MismatchError, DriftError)):
        shutdown(*_ending)
    else:
        shutdown(f"its script failed with {type(failure).__name__}: {failure}", EXCEPTION_EXIT_CODE)
    recording.end()


def _after_fork() -> None:
    """Remove the engine thread and all groups from a forked child, such as a data loader's worker.

    The child must not hold the connections open either, or the peers would not notice when the parent dies.
    """
    global _loop, _lock, _give_way
    _lock, _give_way = threading.RLock(), None
    for group in _groups.values():
        group.abandon()
    if _loop is not None:
        _loop.close()
    sharing.abandon_all()
    recording.abandon()
    _groups.clear()
    _run_endings()
    _loop = None
