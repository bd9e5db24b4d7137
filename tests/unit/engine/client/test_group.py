"""The group's facade: training threads hand over work and wait, and one error ends all waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import make_shape
from undertow.engine.client import group as group_module
from undertow.engine.client.group import SUSPICION_S, ConnectedGroup
from undertow.engine.client.waiting import Ticket
from undertow.engine.coordinator import messages
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import HEADER_BYTES, Kind
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import TensorSpec
from undertow.errors import ConfigError, MismatchError, PeerLost, UndertowError
from undertow.sizing import Sizes
from undertow.tracing import events
from undertow.tracing.recorder import Recorder

SPECS = [TensorSpec("weight", (300,), DType.FLOAT32, 300), TensorSpec("bias", (3,), DType.FLOAT32, 3)]


class InlineLoop:
    """An engine thread that does at once what it is handed, in the thread of the caller; timers fire never."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.ticks: list[Callable[[float], None]] = []
        self.failures: list[Callable[[Exception], None]] = []

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        call(*arguments)

    def later(self, delay_s: float, call: Callable[[], object]) -> None:
        self.timers.append((delay_s, call))

    def every_tick(self, call: Callable[[float], None]) -> None:
        self.ticks.append(call)

    def no_tick(self, call: Callable[[float], None]) -> None:
        self.ticks.remove(call)

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        self.failures.append(call)

    def no_failure(self, call: Callable[[Exception], None]) -> None:
        self.failures.remove(call)


class Outgoing:
    """A transport that keeps the messages it is given."""

    bytes_sent = 123
    is_draining = False

    def __init__(self) -> None:
        self.messages: list[tuple[int, messages.Message]] = []
        self.is_closed = self.is_abandoned = False

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        if frames.unpack(header[:HEADER_BYTES]).kind is Kind.CONTROL:
            self.messages.append((peer, messages.decode(body)))

    def is_connected(self, peer: int) -> bool:
        return True

    def checks_bodies(self, peer: int) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True

    def abandon(self) -> None:
        self.is_abandoned = True


class InlineHelper:
    """A helper that does work when the test says so."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.is_stopped = False

    def submit(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def stop(self) -> None:
        self.is_stopped = True

    def join(self, timeout_s: float) -> None: ...


class Bench:
    """A group of one worker unless a test says otherwise, in one thread."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.loop, self.out = InlineLoop(), Outgoing()
        self.recorder = Recorder(lambda: 5.0)
        shape = make_shape(size, rank=rank, sizes=Sizes(fixed=1024), stall_timeout_s=0.0)
        self.group = ConnectedGroup(shape, self.loop, self.out, lambda: 1.0, self.recorder)  # type: ignore[arg-type]
        self.group.start()

    @property
    def helper(self) -> Any:
        return self.group._helper


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "Helper", InlineHelper)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_registered_table_is_sliced_as_agreed_and_known_to_the_engine(bench: Bench) -> None:
    slices = bench.group.register("parameters", SPECS, op=Op.SUM)
    assert sum(item.spec.elements for item in slices) == 303
    target = np.zeros(slices[0].spec.elements, np.float32)
    ticket = Ticket(1)
    source = np.full_like(target, 3.0)
    bench.group.contribute([Contribution(slices[0].spec.key, source, target, 1, ticket.answer)])
    bench.group.wait_for(ticket)
    assert target.tolist() == source.tolist()


def test_an_impossible_table_is_refused_before_any_rank_is_asked(bench: Bench) -> None:
    whole = TensorSpec("count", (3,), DType.INT64, 3)
    with pytest.raises(ConfigError, match="there is no exact mean of integers"):
        bench.group.register("parameters", [whole], op=Op.MEAN)
    assert bench.group.register("parameters", [whole], op=Op.SUM)[0].spec.elements == 3


def test_tensors_of_slices_are_named_while_a_trace_is_recorded(bench: Bench) -> None:
    bench.group.register("silent", SPECS, op=Op.SUM)
    bench.recorder.start()
    slices = bench.group.register("parameters", SPECS, op=Op.MEAN)
    [named] = [event for event in bench.recorder.take() if isinstance(event, events.Named)]
    assert (named.table, named.op) == ("parameters", "mean")
    assert {name for names in named.tensors.values() for name in names} == {"weight", "bias"}
    assert set(named.tensors) == {item.spec.key for item in slices}


def test_ranks_that_disagree_raise_what_differs() -> None:
    first, second = Bench(2), Bench(2, rank=1)
    pending = first.group.begin_agreement("barrier")
    second.group.begin_agreement("tensors", b"")
    [(peer, arrival)] = second.out.messages
    assert peer == 0
    first.group.receiver._control.handle_message(1, arrival)
    with pytest.raises(MismatchError, match="barrier"):
        pending.take()


def test_a_decision_is_valid_even_if_a_rank_is_lost_right_afterwards(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive = bench.group._control.arrive

    def arrive_and_lose(*arguments: Any) -> None:
        arrive(*arguments)
        bench.group.waiters.fail(PeerLost("rank 1 was lost"))

    monkeypatch.setattr(bench.group._control, "arrive", arrive_and_lose)
    bench.group.barrier()
    with pytest.raises(PeerLost, match="rank 1 was lost"):
        bench.group.barrier()


def test_a_copy_from_a_device_is_open_work_until_it_is_sent(bench: Bench) -> None:
    [item] = bench.group.register("one", SPECS[1:], op=Op.SUM)
    array, ready = np.ones(item.spec.elements, np.float32), list[bool]()
    bench.group.contribute([Contribution(item.spec.key, array, array, 1, lambda done: None)], lambda: bool(ready))
    assert not bench.group.open_work.is_done
    ready.append(True)
    bench.loop.timers.pop()[1]()
    assert bench.group.open_work.is_done


def test_work_of_the_helper_is_open_until_it_is_done(bench: Bench) -> None:
    done: list[bool] = []
    bench.group.aside(lambda: done.append(bench.group.open_work.is_done))
    assert not bench.group.open_work.is_done
    bench.helper.work.pop()()
    assert done == [False]
    assert bench.group.open_work.is_done


def test_failed_work_of_the_helper_fails_the_group_and_is_not_open(bench: Bench) -> None:
    def fail() -> None:
        raise UndertowError("it does not fit")

    bench.group.aside(fail)
    bench.helper.work.pop()()
    assert bench.group.open_work.is_done
    with pytest.raises(UndertowError, match="it does not fit"):
        bench.group.check()


def test_a_suspicion_is_an_error_only_if_no_better_cause_is_found(bench: Bench) -> None:
    bench.group.suspect(UndertowError("the sums differ"))
    assert bench.group.error is None
    [(delay_s, fail)] = bench.loop.timers
    assert delay_s == SUSPICION_S
    bench.group.waiters.fail(PeerLost("rank 1 was lost"))
    fail()
    assert str(bench.group.error) == "rank 1 was lost"


def test_side_messages_go_to_rank_0_and_it_sends_none() -> None:
    first, second = Bench(2), Bench(2, rank=1)
    first.group.send_to_first(b"own")
    second.group.send_to_first(b"report")
    assert first.out.messages == []
    assert second.out.messages == [(0, messages.SideMessage(b"report"))]
    heard: list[bytes] = []
    first.group.on_side_message(heard.append)
    first.group.receiver._control.handle_message(1, second.out.messages[0][1])
    assert heard == [b"report"]


def test_close_releases_everything(bench: Bench) -> None:
    bench.recorder.lend()
    bench.group.close()
    assert bench.out.is_closed
    assert bench.helper.is_stopped
    assert (bench.loop.ticks, bench.loop.failures) == ([], [])
    assert bench.recorder.lend() is bench.recorder
    with pytest.raises(UndertowError, match=r"undertow is shut down: call undertow.init\(\) again"):
        bench.group.barrier()


def test_an_engine_that_has_failed_is_not_waited_for(bench: Bench) -> None:
    [fail] = bench.loop.failures
    fail(OSError("too many open files"))
    with pytest.raises(UndertowError, match="the engine failed: OSError: too many open files"):
        bench.group.check()
    assert bench.group._closed.is_set()


def test_a_forked_child_sends_nothing_and_cannot_wait(bench: Bench) -> None:
    bench.group.abandon()
    assert bench.out.is_abandoned
    assert not bench.out.is_closed
    with pytest.raises(UndertowError, match="this process was forked from a worker"):
        bench.group.wait_for(Ticket(1))


def test_bytes_sent_are_those_of_the_transport(bench: Bench) -> None:
    assert bench.group.bytes_sent == 123
