"""Runs the lab in namespaces of its own, whose removal the kernel guarantees.

In: a function.  Out: its exit code; every process that it started has ended, whatever happened.
Three processes, each the parent of the next:

    caller      waits, and forwards signals
    first       process 1 of a new process namespace: reaps orphans, forwards signals
    work        runs the function, as an ordinary process

When `first` ends, for whatever reason, the kernel kills everything in its namespace, including
detached grandchildren, and removes the emulated network with the last process.  `first` ends
when `work` ends, and is killed when the caller ends, even by SIGKILL.  Nothing is registered
anywhere, so nothing has to be cleaned up and nothing can be left behind.
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

# The signals with which a user, a terminal or a batch system ends a command.  They are always
# forwarded: `work` inherits which of them are ignored, such as SIGHUP under nohup.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HELD = frozenset([signal.SIGCHLD, *_STOPS])
FAILED = 1


def find_obstacle() -> str | None:
    """Return why the lab cannot run here, in one line; None if it can."""
    if sys.platform != "linux":
        return f"emulated hosts need Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "emulated hosts need root; try it with sudo"
    for tool in ("ip", "tc"):
        if find_tool(tool) is None:
            return f"emulated hosts need the command {tool}; install the package iproute2"
    number = _try_namespaces()
    if number in (errno.EPERM, errno.EACCES):
        return "this container may not create namespaces; start it with --privileged, or run outside of it"
    return f"the kernel cannot create namespaces: {os.strerror(number)}" if number else None


def run_isolated(work: Callable[[], int]) -> int:
    """Run `work` in new network, process, mount and host name namespaces, and return its exit code.

    The code is 128 + n if signal n ended it.  Each SIGINT, SIGTERM, SIGHUP and SIGQUIT to the caller reaches `work`
    once, including those from the terminal.  An `UndertowError` or `OSError` is raised here too; any other error is
    shown with its traceback, and the code is 1.  `work` starts with the calling thread only.
    """
    _fill_standard_streams()
    _flush()  # otherwise both processes would write what is still in the buffers
    caller, errors = os.pidfd_open(os.getpid()), os.memfd_create("undertow-error")
    try:
        with _hold_signals() as mask:
            first = _fork_first()
            if first == 0:
                _be_first(work, _Caller(caller, errors, mask))
            code = _forward_signals(first)
        error = read_error(errors)
        if error is not None:
            raise error
        return code
    finally:
        os.close(caller)
        os.close(errors)


@dataclass(frozen=True)
class _Caller:
    """Pidfd, error file and signal mask of the caller, for `first` and `work`."""

    pidfd: int  # readable once the caller has ended
    errors: int  # an open file for an error that the caller shall raise
    mask: set[int]  # of signals, before we blocked any


@contextmanager
def _hold_signals() -> Iterator[set[int]]:
    """Block signals, so that `sigwait` receives them: none is lost, none interrupts us.  Yields the previous mask."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise a child's exit status would be lost
    mask: set[int] = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _fork_first() -> int:
    """Fork into a new process namespace; return 0 in the child.  The caller's later children stay in the old one."""
    home = open_namespace("pid")
    pid = -1
    try:
        unshare(NEWPID)
        pid = os.fork()
    except OSError as error:
        raise LabError(f"cannot create emulated hosts: {error.strerror}") from None
    finally:
        if pid != 0:
            set_namespace(home, NEWPID)
        os.close(home)
    return pid


def _be_first(work: Callable[[], int], caller: _Caller) -> NoReturn:
    code = FAILED
    try:
        die_with_parent(signal.SIGKILL)
        if not _has_ended(caller.pidfd):  # it may have ended just before we requested the signal
            # Detach from the terminal: its Ctrl-C goes to the caller, which forwards it, so it arrives once.
            os.setsid()
            unshare(NEWNET | NEWNS | NEWUTS)
            mount_own_proc()
            pid = os.fork()
            if pid == 0:
                _be_work(work, caller)
            code = _forward_signals(pid, reap_others=True)
    except OSError as error:
        write_error(LabError(f"cannot create emulated hosts: {error.strerror}"), caller.errors)
    finally:
        os._exit(code)


def _be_work(work: Callable[[], int], caller: _Caller) -> NoReturn:
    code = FAILED
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, caller.mask)
        code = _run(work, errors=caller.errors)
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
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)


def _fill_standard_streams() -> None:
    """Open every closed standard stream: otherwise one of our files would get its number, and what is written to it."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # missing, closed, or no longer read: no reason to fail
            stream.flush()


def _forward_signals(pid: int, *, reap_others: bool = False) -> int:
    """Forward every stop signal to a child until it ends; return its exit code."""
    while True:
        signum = signal.sigwait(_HELD)
        if signum != signal.SIGCHLD:
            os.kill(pid, signum)  # safe even if the child has just ended: only we can reap it
        elif (status := _reap(pid, others=reap_others)) is not None:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _reap(pid: int, *, others: bool) -> int | None:
    """Return the child's wait status, None while it runs.  With `others`, reap orphans too."""
    while True:
        ended, status = os.waitpid(-1 if others else pid, os.WNOHANG)
        if ended in (0, pid):
            return status if ended else None


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _try_namespaces() -> int:
    """Return the kernel's error number, or 0.  A child process tries, because it could not leave the namespaces."""
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
