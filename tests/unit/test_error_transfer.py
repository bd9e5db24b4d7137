"""Errors passed to another process keep their class, message and facts."""

from __future__ import annotations

import errno
import json
import tempfile

import pytest

from undertow.error_transfer import read_error, write_error
from undertow.errors import ConfigError, DriftError, LabError, MismatchError, PeerLost, UndertowError
from undertow.horovod.errors import WorkerLost

LOST = PeerLost("it closed", rank=2, host="b", exit_code=3, seen_by=1, own_rank=0, step=7)


class OwnError(LabError):
    """A class that the reader does not know by name."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("bad wish"), ConfigError),
        (OwnError("särskilt"), LabError),
        (UndertowError("x" * 100_000), UndertowError),
        (LOST, PeerLost),
        (PeerLost(rank=2, host="b", silent_s=11.5), PeerLost),
        (PeerLost(ranks=[1, 2], event="of 3 did not arrive within 1 s"), PeerLost),
        (MismatchError("ranks differ", matter="Net", tensor="w", ranks=(0, 2)), MismatchError),
        (DriftError("replicas differ", tensor="w", ranks=(1,)), DriftError),
        (FileNotFoundError(2, "No such file or directory", "train"), FileNotFoundError),
        (OSError(errno.EMFILE, "Too many open files"), OSError),
        (OSError("no number"), OSError),
    ],
    ids=repr,
)
def test_an_error_arrives_as_what_it_was(error: UndertowError | OSError, kind: type[Exception]) -> None:
    with tempfile.TemporaryFile() as file:
        assert read_error(file.fileno()) is None
        try:
            raise error
        except (UndertowError, OSError) as caught:
            caught.add_note("notes stay where they are")
            write_error(caught, file.fileno())
        arrived = read_error(file.fileno())
    assert (type(arrived), str(arrived)) == (kind, str(error))
    assert getattr(arrived, "errno", None) == getattr(error, "errno", None)
    [story] = vars(arrived).pop("__notes__")
    assert "test_an_error_arrives_as_what_it_was" in story
    vars(error).pop("__notes__")
    assert vars(arrived) == vars(error)


def test_a_class_of_a_frontend_arrives_as_the_one_that_all_know() -> None:
    with tempfile.TemporaryFile() as file:
        write_error(WorkerLost("it closed", rank=2), file.fileno())
        arrived = read_error(file.fileno())
    assert type(arrived) is PeerLost
    assert (arrived.rank, str(arrived)) == (2, "rank 2 was lost: it closed")


def test_facts_that_an_error_does_not_have_are_left_out() -> None:
    with tempfile.TemporaryFile() as file:
        write_error(ConfigError("no"), file.fileno())
        file.seek(0)
        written = json.loads(file.read())
        for kind in "ConfigError", "annotations", "recast", "_Error":
            file.truncate(0)
            file.seek(0)
            file.write(json.dumps({**written, "kind": kind, "facts": {"args": "x", "rank": 3}}).encode())
            file.flush()
            arrived = read_error(file.fileno())
            assert type(arrived) is (ConfigError if kind == "ConfigError" else UndertowError)
            assert str(arrived) == "no"
            assert vars(arrived).keys() == {"__notes__"}
