"""A world of its own for the lab, whose end the kernel guarantees.

In: a function.  Out: its exit code; whatever it started has ended, whatever happened.
Three processes, each the parent of the next:

    caller      waits, and passes signals on
    first       number 1 of a new process namespace: reaps orphans, passes signals on
    work        runs the function, as an ordinary process

When `first` ends, for whatever reason, the kernel kills everything in its namespace, detached
grandchildren included, and with the last process the emulated network is gone.  `first` ends
when `work` ends, and is killed when the caller ends, even by SIGKILL.  Nothing is registered
anywhere, so there is nothing to clean up and nothing that could be left behind.
The file system and the standard streams are those of the caller.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from undertow.error_transfer import read_error, write_error
from undertow.errors import LabError, UndertowError
from undertow.tools.lab.iproute import find_tool
from undertow.tools.lab.namespaces import (
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUTS,
    die_with_parent,
    mount_own_proc,
    open_namespace,
    set_namespace,
    unshare,
)

# What a user, a terminal or a batch system ends a command with.  Whether it is ignored, as nohup
# has us do with SIGHUP, is decided where it arrives in the end: `work` inherits that.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HELD = frozenset([signal.SIGCHLD, *_STOPS])
FAILED = 1


def find_obstacle() -> str | None:
    """Why the lab cannot run here, in one line; None if it can."""
    if sys.platform != "linux":
        return f"emulated hosts need Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "emulated hosts need root; try it with sudo"
    for tool in ("ip", "tc"):
        if find_tool(tool) is None:
            return f"emulated hosts need the command {tool}; install the package iproute2"
    number = _try_namespaces()
    if number in (errno.EPERM, errno.EACCES):
        return "this container may not make namespaces; start it with --privileged, or leave it"
    return f"the kernel makes no namespaces: {os.strerror(number)}" if number else None


def run_isolated(work: Callable[[], int]) -> int:
    """Run `work` in network, process, mount and host name namespaces of its own; returns its exit code.

    The code is 128 + n if signal n ended it.  Each SIGINT, SIGTERM, SIGHUP and SIGQUIT to the caller reaches
    `work` once, the terminal's too.  An `UndertowError` or `OSError` is raised here as well; any other error is
    shown with its traceback, and the code is 1.  Only the calling thread goes along: `work` starts without others.
    """
    _fill_standard_streams()
    _flush()  # or both processes would write what is still in the buffers
    caller, errors = os.pidfd_open(os.getpid()), os.memfd_create("undertow-error")
    try:
        with _hold_signals() as mask:
            first = _fork_first()
            if first == 0:
                _be_first(work, _Ties(caller, errors, mask))
            code = _pass_on(first)
        error = read_error(errors)
        if error is not None:
            raise error
        return code
    finally:
        os.close(caller)
        os.close(errors)


@dataclass(frozen=True)
class _Ties:
    """Connections of `first` and `work` to their caller."""

    caller: int  # an open file that becomes readable when the caller has ended
    errors: int  # an open file for an error to be raised by the caller
    mask: set[int]  # of signals, as it was before


@contextmanager
def _hold_signals() -> Iterator[set[int]]:
    """Let signals wait for `sigwait` inside of the block: none is lost, none interrupts us.  Yields the old mask."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or it could not be learned how a child ended
    mask: set[int] = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _fork_first() -> int:
    """Fork into a new process namespace; 0 in the child.  The caller's later children are not concerned."""
    home = open_namespace("pid")
    pid = -1
    try:
        unshare(NEWPID)
        pid = os.fork()
    except OSError as error:
        raise LabError(f"no emulated hosts: {error.strerror}") from None
    finally:
        if pid != 0:
            set_namespace(home, NEWPID)
        os.close(home)
    return pid


def _be_first(work: Callable[[], int], ties: _Ties) -> NoReturn:
    code = FAILED
    try:
        die_with_parent(signal.SIGKILL)
        if not _has_ended(ties.caller):  # perhaps just before we asked for the signal
            # Out of the terminal's reach: its Ctrl-C goes to the caller, who passes it on, and so arrives once.
            os.setsid()
            unshare(NEWNET | NEWNS | NEWUTS)
            mount_own_proc()
            pid = os.fork()
            if pid == 0:
                _be_work(work, ties)
            code = _pass_on(pid, reap_others=True)
    except OSError as error:
        write_error(LabError(f"no emulated hosts: {error.strerror}"), ties.errors)
    finally:
        os._exit(code)


def _be_work(work: Callable[[], int], ties: _Ties) -> NoReturn:
    code = FAILED
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ties.mask)
        code = _run(work, errors=ties.errors)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _run(work: Callable[[], int], *, errors: int) -> int:
    try:
        return work()
    except (UndertowError, OSError) as error:
        write_error(error, errors)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as wish:
        return wish.code if isinstance(wish.code, int) else int(wish.code is not None)


def _fill_standard_streams() -> None:
    """Open every closed standard stream: one of our files would take its number, and get what is written there."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # not there, not read, closed: no reason to fail
            stream.flush()


def _pass_on(pid: int, *, reap_others: bool = False) -> int:
    """Pass every stop signal on to a child until it ends; returns its code."""
    while True:
        signum = signal.sigwait(_HELD)
        if signum != signal.SIGCHLD:
            os.kill(pid, signum)  # a child that has just ended is still there: only we can reap it
        elif (status := _reap(pid, others=reap_others)) is not None:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _reap(pid: int, *, others: bool) -> int | None:
    """Return how the child ended, None while it lives; reap orphans, too, if they are ours."""
    while True:
        ended, status = os.waitpid(-1 if others else pid, os.WNOHANG)
        if ended in (0, pid):
            return status if ended else None


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _try_namespaces() -> int:
    """Return the kernel's error number, or 0; a child tries, because there is no way back."""
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            unshare(NEWPID | NEWNET | NEWNS | NEWUTS)
            mount_own_proc()
        except OSError as error:
            number = error.errno or errno.EPERM
        finally:
            os._exit(number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
