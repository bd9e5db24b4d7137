"""What there is once per process: the engine thread and the groups it serves.

In: `init`, or a framework's own process group.  Out: groups, formed when first needed.
Importing starts nothing; `shutdown` and the end of the process end everything.
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
from typing import Any

from undertow.coordinator.meeting import WORKERS_MET
from undertow.coordinator.rendezvous import MeetingPoint, attend
from undertow.coordinator.start_marks import Mark, waiting
from undertow.errors import ConfigError, DriftError, MismatchError, PeerLost, UndertowError
from undertow.hidden import read_environment
from undertow.launch.foreign import refuse_processes
from undertow.runtime import formation, recording, sharing
from undertow.runtime.group import Group
from undertow.runtime.torch_groups import has_process_group
from undertow.settings import Settings, read_settings
from undertow.wire.loop import Loop

log = logging.getLogger("undertow")

_lock = threading.RLock()
_loop: Loop | None = None
_settings: Settings | None = None
_groups: dict[object, Group] = {}
_formed = 0  # how often `init` has succeeded, the same on all ranks: a failed one may be tried again
_DEFAULT = "default"
ANNOUNCE_S = 5.0
_give_way: Callable[[str], None] | None = None  # set: the default group was formed for a script that did not ask


def init(**arguments: Any) -> None:
    """Join the other workers of this job.  A second call changes nothing."""
    global _settings, _formed
    give_way("undertow.init()")
    with _lock:
        if _DEFAULT in _groups:
            return
        settings = read_settings(**arguments)
        if arguments.get("world_size") is None and not has_process_group():
            refuse_processes(read_environment(), script=os.path.basename(sys.argv[0]) or "train.py")
        form = functools.partial(_form_default, settings)
        add_group(_DEFAULT, lambda: form_recorded(settings, form, size=settings.world_size))
        _settings = settings
        _formed += 1


def init_for_script(leave: Callable[[str], None], **arguments: Any) -> None:
    """Join the other workers for a script that does not do so.

    If it does after all, `leave` is called first, with the name of the call by which it joins.
    """
    global _give_way
    init(**arguments)
    _give_way = leave


def give_way(call: str) -> None:
    """The script itself joins by this call: a group that was formed for it is left first."""
    global _give_way
    leave, _give_way = _give_way, None
    if leave is not None:
        leave(call)


def is_formed_for_script() -> bool:
    """Whether the default group was formed for a script that has not asked for it."""
    return _give_way is not None


def is_joined_by_script() -> bool:
    """Whether the script has called `init`, by whatever name, and not `shutdown` yet."""
    return is_initialized() and not is_formed_for_script()


def default_group() -> Group:
    """The group of `init`; `ConfigError` before it."""
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


def add_group(name: object, form: Any) -> Group:
    """The group of this name; formed now if there is none."""
    with _lock:
        if name not in _groups:
            _groups[name] = form()
        return _groups[name]


def find_group(name: object) -> Group:
    """The group of this name, which was formed."""
    return _groups[name]


def remove_group(name: object) -> None:
    """Leave the group of this name, in order."""
    with _lock:
        group = _groups.pop(name)
    group.close()


def form_recorded(settings: Settings, form: Callable[[], Group], *, size: int) -> Group:
    """Form a group of all workers that train, and record from then on what this one does, if that is wished for."""
    recording.prepare(settings)
    # Not all that were started, if the script has chosen another size.
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


def _announce(settings: Settings, group: Group) -> None:
    """Tell the launchers of several hosts that the workers have met: from now on the workers notice losses."""
    if settings.rendezvous and settings.local_world_size < group.size:
        where, token = settings.rendezvous, settings.token.encode()
        with contextlib.suppress(UndertowError):  # a launcher that is gone has nothing left to notice
            attend(where, token, meeting=WORKERS_MET, rank=0, size=1, payload=b"", timeout_s=ANNOUNCE_S)


def loop() -> Loop:
    """The engine thread, started when first needed."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = Loop()
            _loop.start()
            _watch_process()
        return _loop


def shutdown(error: str = "") -> None:
    """Leave all groups and end the engine thread.  Never hangs, never raises."""
    global _loop, _settings, _give_way
    with _lock:
        groups, _settings, _give_way = list(_groups.values()), None, None
        _groups.clear()
        recording.part()
        sharing.close_all()  # first: to say goodbye may take long, and needs no device
        for group in groups:
            group.leave(error)  # all at once: two ranks may know them in another order
        for group in groups:
            group.close(error)
        _run_endings()
        if _loop is not None:
            _loop.stop()
            _loop = None


def at_shutdown(forget: Callable[[], None]) -> None:
    """Call this once, when this process has left its groups; also in a forked child, which has none."""
    if forget not in _endings:
        _endings.append(forget)


_endings: list[Callable[[], None]] = []


def _run_endings() -> None:
    while _endings:
        _endings.pop()()


def _form_default(settings: Settings) -> Group:
    name = f"workers-{_formed}"
    if settings.rendezvous and settings.world_size > 1:
        meet, master = _meet_at(settings.rendezvous, name, settings), formation.host_of(settings.rendezvous)
    elif settings.world_size == 1 and not has_process_group():
        meet, master = (lambda payload: [payload]), "127.0.0.1"
    elif has_process_group() or read_environment().get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # The script has a process group, which knows rank and size, or torchrun started us:
        # its store carries our addresses.
        from undertow.torch import c10d

        return c10d.form_world(name, settings, loop())
    else:
        return _form_at_master(name, settings)
    return form_group(meet, name, settings, formation.route_to(master))


def form_group(meet: formation.Meet, name: str, settings: Settings, address: str) -> Group:
    return formation.form(
        meet,
        name=name,
        rank=settings.rank,
        size=settings.world_size,
        settings=settings,
        loop=loop(),
        address=settings.address or address,
    )


def _form_at_master(name: str, settings: Settings) -> Group:
    """Without a launcher of ours: rank 0 holds the meeting where MASTER_ADDR and MASTER_PORT say."""
    if not settings.master_port:
        raise ConfigError(
            f"WORLD_SIZE is {settings.world_size}, but neither MASTER_PORT nor a launcher says where to meet. "
            "Start with `undertow run` or torchrun, or set MASTER_ADDR and MASTER_PORT"
        )
    place = f"{settings.master_addr}:{settings.master_port}"
    point = None
    if settings.rank == 0 and not settings.token:
        log.warning(
            "the job's token is handed to whoever meets at %s; set the same UNDERTOW_TOKEN for all workers", place
        )
    if settings.rank == 0:
        point = MeetingPoint(settings.master_addr, settings.master_port, settings.token.encode())
        point.start()
    try:
        return form_group(_meet_at(place, name, settings), name, settings, formation.route_to(settings.master_addr))
    finally:
        if point is not None:
            point.close()


def _meet_at(place: str, name: str, settings: Settings) -> formation.Meet:
    def meet(payload: bytes) -> list[bytes]:
        return attend(
            place,
            settings.token.encode(),
            meeting=name,
            rank=settings.rank,
            size=settings.world_size,
            payload=payload,
            timeout_s=settings.start_timeout_s,
        )

    return meet


def _watch_process() -> None:
    global _watched
    if not _watched:
        _watched = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)


_watched = False


def blame(reason: str) -> None:
    """Tell the others, when this process ends, why it did: not because its work is done."""
    global _reason
    _reason = reason


_reason = ""


def _at_exit() -> None:
    failure = getattr(sys, "last_value", None)
    # These three the others have heard of already, or raise themselves.
    if failure is None or isinstance(failure, (PeerLost, MismatchError, DriftError)):
        shutdown(_reason)
    else:
        shutdown(f"its script failed with {type(failure).__name__}: {failure}")
    recording.end()


def _after_fork() -> None:
    """A forked child (a data loader's worker, say) has no engine thread and takes no part.

    It must not hold the connections open either: the peers would not notice when we die.
    """
    global _loop, _lock, _give_way
    _lock, _give_way = threading.RLock(), None
    for group in _groups.values():
        group.abandon()
    if _loop is not None:
        _loop.abandon()
    sharing.abandon_all()
    recording.abandon()
    _groups.clear()
    _run_endings()
    _loop = None
