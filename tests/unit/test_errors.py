"""Errors carry facts, from which their messages are made."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

import undertow.errors
from undertow.errors import (
    ConfigError,
    DriftError,
    MismatchError,
    PeerLost,
    Refused,
    UndertowError,
    name_ranks,
    recast,
)
from undertow.horovod.errors import CallMismatch, WorkerLost

EACH: list[UndertowError] = [
    ConfigError("no"),
    MismatchError("ranks differ", matter="Net", tensor="w", ranks=[0, 2]),
    CallMismatch("ranks differ", matter="x", ranks=[0, 2]),
    PeerLost("why"),
    PeerLost("why", rank=2, host="b", exit_code=3, seen_by=1, own_rank=0, step=7),
    PeerLost(rank=2, host="b", silent_s=10.25),
    PeerLost(ranks=[1, 2], event="did not connect within 9 s of the start"),
    WorkerLost("why", rank=2, step=7),
    Refused("wrong token", address="10.0.0.1:29500"),
    DriftError("replicas differ", tensor="w", ranks=[1]),
]
SILENCE = "no sign of life for 10.2 s (process stopped, host down or link cut)"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PeerLost("what is known"), "what is known"),
        (PeerLost("it closed", rank=2), "rank 2 was lost: it closed"),
        (PeerLost("it closed", rank=2, host="b"), "rank 2 on host b was lost: it closed"),
        (
            PeerLost("it closed", rank=2, host="b", seen_by=0, own_rank=0, step=7),
            "rank 2 on host b was lost: it closed; this is rank 0 at step 7",
        ),
        (
            PeerLost("it closed", rank=2, host="b", seen_by=1, own_rank=0, step=7),
            "rank 2 on host b was lost: it closed (seen by rank 1); this is rank 0 at step 7",
        ),
        (PeerLost(rank=2, host="b", silent_s=10.2), f"rank 2 on host b was lost: {SILENCE}"),
        (
            PeerLost("no route", rank=2, host="b", event="was met but cannot be reached"),
            "rank 2 on host b was met but cannot be reached: no route",
        ),
        (PeerLost(ranks=[1, 3], event="did not come"), "ranks 1 and 3 did not come"),
        (Refused("wrong token"), "wrong token"),
        (Refused("wrong token", address="10.0.0.1:29500"), "10.0.0.1:29500: wrong token"),
    ],
)
def test_the_message_is_made_of_the_facts(error: UndertowError, message: str) -> None:
    assert str(error) == message


def test_a_lost_peer_is_named_by_its_facts() -> None:
    lost = PeerLost("its script failed", rank=2, host="b", exit_code=3, seen_by=1, own_rank=0, step=7)
    assert (lost.rank, lost.ranks, lost.host, lost.reason) == (2, (2,), "b", "its script failed")
    assert (lost.exit_code, lost.seen_by, lost.own_rank, lost.step, lost.silent_s) == (3, 1, 0, 7, None)
    silent = PeerLost(rank=2, silent_s=10.2)
    assert (silent.silent_s, silent.reason) == (10.2, SILENCE)


def test_of_several_lost_peers_the_first_is_the_rank() -> None:
    lost = PeerLost(ranks=[1, 3], event="did not come")
    assert (lost.rank, lost.ranks, lost.host, lost.step) == (1, (1, 3), "", None)
    assert (PeerLost("nobody is known").rank, PeerLost("nobody is known").ranks) == (None, ())


def test_a_mismatch_names_the_matter_the_tensor_and_the_ranks() -> None:
    error = MismatchError("ranks differ", matter="Net", tensor="w", ranks=[0, 2])
    assert (error.matter, error.tensor, error.ranks) == ("Net", "w", (0, 2))
    assert (MismatchError("no").matter, MismatchError("no").tensor, MismatchError("no").ranks) == ("", "", ())


def test_a_refusal_names_the_address_and_a_drift_the_tensor_and_the_ranks() -> None:
    refused = Refused("wrong token", address="10.0.0.1:29500")
    assert (refused.reason, refused.address) == ("wrong token", "10.0.0.1:29500")
    drift = DriftError("replicas differ", tensor="w", ranks=[1])
    assert (drift.tensor, drift.ranks) == ("w", (1,))


@pytest.mark.parametrize("error", EACH, ids=repr)
def test_copied_and_pickled_errors_keep_their_facts(error: UndertowError) -> None:
    unpickled = pickle.loads(pickle.dumps(error))  # noqa: S301
    for same in copy.copy(error), unpickled, recast(error, type(error)):
        assert same is not error
        assert (type(same), str(same), same.args, vars(same)) == (type(error), str(error), error.args, vars(error))


def test_an_error_of_another_kind_has_the_same_message_and_facts() -> None:
    lost = recast(PeerLost("why", rank=2, host="b", own_rank=0, step=7), WorkerLost)
    assert (type(lost), str(lost)) == (WorkerLost, "rank 2 on host b was lost: why; this is rank 0 at step 7")
    assert (lost.rank, lost.step) == (2, 7)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "no ranks"),
        ([2], "rank 2"),
        ([2, 3], "ranks 2 and 3"),
        ([4, 0, 1, 0], "ranks 0, 1 and 4"),
        (list(range(20)), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more"),
    ],
)
def test_ranks_are_named_in_a_phrase(ranks: list[int], words: str) -> None:
    assert name_ranks(ranks) == words


def test_the_tree_in_the_docstring_has_every_error_and_its_parents() -> None:
    drawn = re.findall(r"^(?:[├└]── )?(\w+)(?:\((\w+)\))?(?: {2,}|$)", undertow.errors.__doc__ or "", re.MULTILINE)
    named = {name: parent for name, parent in drawn if name.endswith("Error") or name in vars(undertow.errors)}
    kinds = [kind for kind in vars(undertow.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert set(named) == {kind.__name__ for kind in kinds}
    for kind in kinds:
        parents = [base.__name__ for base in kind.__bases__ if base not in (UndertowError, Exception)]
        assert named[kind.__name__] == ", ".join(parents)
