"""For all tests: nothing of an outer job, or of the shell that started them, leaks in; and a browser."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.chromium import Browser, check_installed, open_chromium

_OUTER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = ("UNDERTOW_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "PET_", "MPI_LOCAL", "MV2_", "HOROVOD_")


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """A shell's background jobs ignore the first two, and nohup the third; so would every process that a test starts.

    The tests themselves go on without a terminal that was closed: only the programs they start get the default back.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # A handler, unlike SIG_IGN, ends with exec.
        signal.signal(signal.SIGHUP, lambda signum, frame: None)


@pytest.fixture(autouse=True)
def no_outer_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test started inside a job, or on a machine set up for one, is not part of it."""
    for name in [name for name in os.environ if name in _OUTER or name.startswith(_LAUNCHERS)]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Started once; tests ask for `browser`."""
    check_installed()
    with open_chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """An empty window; fails the test if a page complained in the console and the test did not ask about it."""
    chromium.open("about:blank")
    chromium.complaints()
    yield chromium
    assert chromium.complaints() == []
