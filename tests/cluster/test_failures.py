"""A worker that dies, stops, leaves or never comes: the others say who and why, and nothing hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import (
    DIED,
    HANG_S,
    RETURNED,
    hear,
    on_workers,
    outcomes_of,
    run_workers,
    say,
    start_workers,
)
from undertow.engine.client import formation
from undertow.engine.wire.link import Link
from undertow.errors import ConfigError
from undertow.runtime import process
from undertow.torch import DistributedDataParallel

HOST = socket.gethostname()


def train(model: nn.Module, steps: int, width: int = 4) -> None:
    for _ in range(steps):
        model(torch.ones(1, width)).sum().backward()


def train_for_ever(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    train(model, 3)
    say("in the middle of it")
    train(model, 10**9)


@pytest.mark.parametrize("over_tcp", [False, True])
@pytest.mark.parametrize("victim", [0, 2])
def test_all_others_name_a_worker_that_was_killed(victim: int, over_tcp: bool) -> None:
    crew = start_workers(4, train_for_ever, over_tcp=over_tcp)
    for rank in range(4):
        crew.heard(rank)
    crew.send_signal(victim, signal.SIGKILL)
    for outcome in crew.outcomes():
        if outcome.rank == victim:
            assert outcome.kind == DIED
        else:
            assert outcome.kind == "PeerLost", outcome
            assert f"rank {victim} on host {HOST} was lost: its connection" in outcome.text
            assert f"this is rank {outcome.rank} at step" in outcome.text


def fail_after_a_barrier(rank: int) -> None:
    """Rank 1 wakes up from the barrier only when it has heard that rank 0 has failed."""
    group = process.default_group()
    wait = group.waiters.wait

    def wait_late(event: threading.Event, reason: str = "") -> None:
        while group.waiters.error is None:
            time.sleep(0.001)
        wait(event, reason)

    if rank == 1:
        group.waiters.wait = wait_late
    group.barrier()
    raise ConfigError(f"of rank {rank}")


def test_what_all_have_agreed_on_counts_though_a_rank_fails_right_afterwards() -> None:
    for outcome in outcomes_of(2, fail_after_a_barrier):
        assert (outcome.kind, outcome.text) == ("ConfigError", f"of rank {outcome.rank}"), outcome


def test_all_others_name_a_worker_that_was_stopped() -> None:
    crew = start_workers(3, train_for_ever, environment={"UNDERTOW_SILENCE_TIMEOUT": "2"})
    for rank in range(3):
        crew.heard(rank)
    crew.send_signal(1, signal.SIGSTOP)
    try:
        outcomes = [crew.outcome(rank) for rank in (0, 2)]
    finally:
        crew.send_signal(1, signal.SIGCONT)
    for outcome in outcomes:
        assert outcome.kind == "PeerLost", outcome
        assert f"rank 1 on host {HOST} was lost: no sign of life for" in outcome.text
    stopped = crew.outcome(1)
    assert stopped.kind == "PeerLost", stopped
    crew.end()


def flip_a_bit(rank: int) -> None:
    """A bit of rank 1's third gradient flips on the way to rank 0, as a faulty network card would have it."""
    model = DistributedDataParallel(nn.Linear(100, 100, bias=False))
    train(model, 2, width=100)
    if rank == 1:
        send = Link.send

        def send_damaged(link: Link, header: bytes, body: Any) -> None:
            if body is not None and link.peer == 0:
                body = bytearray(memoryview(body).cast("B"))
                body[len(body) // 2] ^= 1
            send(link, header, body)

        Link.send = send_damaged  # type: ignore[method-assign]
    train(model, 1, width=100)


@pytest.mark.parametrize("size", [2, 4])
def test_all_name_the_rank_whose_bytes_were_damaged_and_there_is_no_wrong_sum(size: int) -> None:
    outcomes = outcomes_of(size, flip_a_bit, over_tcp=True, environment={"UNDERTOW_PLAN": "dense"})
    for outcome in outcomes:
        assert outcome.kind == "PeerLost"
        assert f"rank 1 on host {HOST} was lost: bytes from it were damaged on the way (a PUSH frame's" in outcome.text
        assert "does not match its checksum" in outcome.text


def flip_a_bit_of_a_header(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(100, 100, bias=False))
    train(model, 2, width=100)
    if rank == 1:
        send = Link.send

        def send_damaged(link: Link, header: bytes, body: Any) -> None:
            damaged = bytearray(header)
            damaged[len(header) // 2] ^= 1
            send(link, bytes(damaged) if link.peer == 0 else header, body)

        Link.send = send_damaged  # type: ignore[method-assign]
    train(model, 1, width=100)


def test_all_name_the_rank_of_a_damaged_header() -> None:
    for outcome in outcomes_of(3, flip_a_bit_of_a_header, over_tcp=True, environment={"UNDERTOW_PLAN": "dense"}):
        assert outcome.kind == "PeerLost"
        assert f"rank 1 on host {HOST} was lost: bytes from it were damaged on the way (a frame's h" in outcome.text


def test_without_checksums_a_flipped_bit_is_not_noticed() -> None:
    """What the checksum is for, and that UNDERTOW_CHECKSUM turns it off."""
    outcomes = outcomes_of(
        2, flip_a_bit, over_tcp=True, environment={"UNDERTOW_PLAN": "dense", "UNDERTOW_CHECKSUM": "off"}
    )
    assert [outcome.kind for outcome in outcomes] == [RETURNED] * 2


def flip_a_bit_where_ranks_differ(rank: int, choices: list[str]) -> None:
    os.environ["UNDERTOW_CHECKSUM"] = choices[rank]
    undertow.init()
    flip_a_bit(rank)


@pytest.mark.parametrize(
    ("choices", "expected"), [(["auto", "off"], "PeerLost"), (["on", "off"], "PeerLost"), (["off", "on"], RETURNED)]
)
def test_the_choice_of_rank_0_counts_for_the_checksums_of_all(choices: list[str], expected: str) -> None:
    environment = {"UNDERTOW_PLAN": "dense"}
    for outcome in outcomes_of(
        2, flip_a_bit_where_ranks_differ, choices, over_tcp=True, environment=environment, init=False
    ):
        assert outcome.kind == expected, outcome


def be_stopped_and_go_on(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    train(model, 1)
    say("ready")
    if rank == 1:
        hear()
    train(model, 3)


def test_a_worker_that_was_stopped_for_a_moment_goes_on() -> None:
    crew = start_workers(2, be_stopped_and_go_on)
    for rank in range(2):
        crew.heard(rank)
    crew.send_signal(1, signal.SIGSTOP)
    crew.send_signal(1, signal.SIGCONT)
    crew.tell(1, "go on")
    assert [outcome.kind for outcome in crew.outcomes()] == [RETURNED] * 2


def just_init(rank: int) -> None:
    undertow.init()


def test_all_are_told_who_never_came() -> None:
    for outcome in outcomes_of(3, just_init, init=False, ranks=[0, 2], environment={"UNDERTOW_START_TIMEOUT": "1"}):
        assert outcome.kind == "PeerLost"
        assert "rank 1 of 3 did not arrive within 1 s" in outcome.text


def reach_only_the_first(rank: int) -> None:
    if rank == 2:
        dial = formation._dial

        def meet_a_firewall(group: Any, transport: Any, peer: int, *contact: Any, **options: Any) -> None:
            if peer == 1:
                raise undertow.PeerLost("rank 1 was met but cannot be reached")
            dial(group, transport, peer, *contact, **options)

        formation._dial = meet_a_firewall
    undertow.init()
    undertow.barrier()


def test_a_worker_that_could_not_join_says_why() -> None:
    first, _, third = outcomes_of(3, reach_only_the_first, init=False)
    assert third.kind == "PeerLost"
    assert first.kind == "PeerLost"
    assert "rank 2" in first.text
    assert "it could not join: PeerLost: rank 1 was met but cannot be reached" in first.text


def leave_before_all_are_connected(rank: int, late: str) -> None:
    if rank == 1:
        in_time = getattr(formation, late)

        def be_late(*arguments: Any, **options: Any) -> None:
            hear()
            in_time(*arguments, **options)

        setattr(formation, late, be_late)
    undertow.init()
    if rank != 2:
        undertow.barrier()


@pytest.mark.parametrize("late", ["_dial", "_wait_for_links"])
def test_a_worker_that_leaves_before_all_are_connected_is_named(late: str) -> None:
    crew = start_workers(3, leave_before_all_are_connected, late, init=False)
    assert crew.outcome(2).kind == RETURNED
    crew.tell(1, "now")
    for outcome in [crew.outcome(rank) for rank in (0, 1)]:
        assert outcome.kind == "PeerLost", outcome
        assert f"rank 2 on host {HOST} was lost: its script has ended" in outcome.text
    crew.end()


def try_again(rank: int) -> int:
    if rank == 0:
        with pytest.raises(undertow.PeerLost, match="did not arrive"):
            undertow.init(start_timeout_s=0.2)
    say("tried")
    hear()
    undertow.init()
    undertow.barrier()
    return undertow.world_size()


def test_a_start_that_failed_on_one_rank_can_be_tried_again() -> None:
    crew = start_workers(2, try_again, init=False)
    for rank in range(2):
        crew.heard(rank)
    for rank in range(2):
        crew.tell(rank, "again")
    assert [outcome.value for outcome in crew.outcomes()] == [2, 2]


def fail_in_the_middle(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    train(model, 2)
    if rank == 1:
        raise FileNotFoundError("no such data: part-7.parquet")
    train(model, 10**9)


def test_the_others_quote_the_error_of_a_worker_that_failed() -> None:
    outcomes = outcomes_of(3, fail_in_the_middle)
    assert outcomes[1].kind == "FileNotFoundError"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.kind == "PeerLost", outcome
        assert f"rank 1 on host {HOST} was lost" in outcome.text
        assert "FileNotFoundError: no such data: part-7.parquet" in outcome.text


def refuse_alone(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    if rank == 1:
        DistributedDataParallel(nn.Linear(4, 4), device_ids=[1, 2])
    train(model, 10**9)


def test_the_others_quote_an_error_of_undertow_that_is_one_ranks_own() -> None:
    outcomes = outcomes_of(2, refuse_alone)
    assert [outcome.kind for outcome in outcomes] == ["PeerLost", "ConfigError"]
    assert "ConfigError: device_ids [1, 2]" in outcomes[0].text


def finish_early(rank: int) -> None:
    train(DistributedDataParallel(nn.Linear(4, 4)), 2 if rank == 1 else 5)


@pytest.mark.parametrize("call", ["backward", "barrier"])
def test_the_others_say_that_a_worker_has_finished_early(call: str) -> None:
    outcomes = outcomes_of(3, finish_early if call == "backward" else wait_at_a_barrier)
    assert outcomes[1].kind == RETURNED
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.kind == "PeerLost", outcome
        assert f"rank 1 on host {HOST} was lost: its script has ended while others still train" in outcome.text
        assert "uneven inputs? see join()" in outcome.text


def wait_at_a_barrier(rank: int) -> None:
    if rank != 1:
        undertow.barrier()


def finish_first(rank: int) -> None:
    if rank:
        undertow.barrier()


def test_the_coordinator_may_be_the_one_that_finishes_early() -> None:
    outcomes = outcomes_of(2, finish_first)
    assert [outcome.kind for outcome in outcomes] == [RETURNED, "PeerLost"]
    assert "rank 0" in outcomes[1].text


def go_on_after_a_loss(rank: int) -> list[str]:
    model = DistributedDataParallel(nn.Linear(4, 4))
    train(model, 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kinds = []
    for call in (lambda: train(model, 1), undertow.barrier, lambda: DistributedDataParallel(nn.Linear(4, 4))):
        with pytest.raises(undertow.PeerLost, match="rank 1"):
            call()
        kinds.append("PeerLost")
    undertow.shutdown()
    return kinds


def test_every_later_call_raises_the_first_cause_again() -> None:
    outcomes = outcomes_of(2, go_on_after_a_loss)
    assert outcomes[0].value == ["PeerLost"] * 3, outcomes[0]


def shut_down_in_order(rank: int, order: list[int]) -> None:
    train(DistributedDataParallel(nn.Linear(4, 4)), 1)
    say("trained")
    hear()
    undertow.shutdown()
    say("left")


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_shutdown_in_any_order_neither_hangs_nor_fails(order: list[int]) -> None:
    crew = start_workers(3, shut_down_in_order, order)
    for rank in range(3):
        assert crew.heard(rank) == "trained"
    for rank in order:
        crew.tell(rank, "leave")
        assert crew.heard(rank) == "left"
    assert [outcome.kind for outcome in crew.outcomes()] == [RETURNED] * 3


@on_workers(3)
def test_init_works_again_after_shutdown(rank: int) -> None:
    for turn in range(3):
        undertow.init()
        undertow.init()  # a second call changes nothing
        model = DistributedDataParallel(nn.Linear(4, 4))
        train(model, turn + 1)
        undertow.shutdown()
        undertow.shutdown()
        assert not undertow.is_initialized()
        with pytest.raises(undertow.UndertowError, match="shut down"):
            train(model, 1)


def test_a_group_that_failed_can_be_formed_again_by_all() -> None:
    assert run_workers(2, form_again) == [0.5, 0.5]


def form_again(rank: int) -> float:
    model = DistributedDataParallel(nn.Linear(1, 1))
    with pytest.raises(undertow.MismatchError):
        DistributedDataParallel(nn.Linear(1, 1 + rank))
    undertow.shutdown()
    undertow.init()
    model = DistributedDataParallel(nn.Linear(1, 1))
    model(torch.full((1, 1), float(rank))).sum().backward()
    return float(model.module.weight.grad)


SCRIPT = """
    import sys
    import undertow, undertow.kvstore
    import numpy as np

    undertow.init()
    kv = undertow.kvstore.create()
    kv.init("w", np.zeros(3))
    if undertow.rank() == 1:
        {end}
    while True:
        kv.pushpull("w", np.ones(3), out=np.zeros(3)).wait()
"""


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("raise ValueError('of the user')", "its script failed with ValueError: of the user"),
        ("sys.exit(3)", "its script has ended while others still train"),
        ("import os; os._exit(3)", "its connection"),
    ],
)
def test_however_a_real_interpreter_ends_the_other_one_hears_of_it(end: str, expected: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(end=end)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    workers = []
    for rank in "01":
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": port}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, str(script)]
        workers.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [worker.communicate(timeout=HANG_S)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert f"PeerLost: rank 1 on host {HOST} was lost: {expected}" in errors[0]
