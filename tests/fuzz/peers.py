"""Targets: what launchers, arbiters, doctors and the ranks of a model say to each other, without servers."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from tests.fuzz.mutation import damage_json, damage_lines, damage_msgpack
from tests.fuzz.target import Target
from tests.support.arbiters import hello_of
from tests.support.live_samples import make_job_state, make_report
from undertow.crossover import messages as turns
from undertow.crossover.arbiter_state import ArbiterState
from undertow.crossover.turn_state import TurnState
from undertow.engine.client import formation
from undertow.engine.coordinator.rendezvous import _read_reply, parse_address
from undertow.engine.coordinator.rendezvous_server import _requests
from undertow.engine.coordinator.rendezvous_table import Join, JoinFailure, RendezvousTable, Reply
from undertow.engine.wire import streams
from undertow.errors import Garbled, UndertowError
from undertow.launch.host_rendezvous import NodeRecord, _records
from undertow.launch.host_watch import Beat, Go, Goodbye, HostRanks, HostWatch, Left, Lost, Met
from undertow.launch.launcher_link import _Connection, _decoder
from undertow.observe.live import dashboard, displays
from undertow.observe.live.metrics import write_metrics
from undertow.observe.meter.status_report import Activity, decode, encode
from undertow.observe.report.sharing import make_status
from undertow.plan.cluster import Cluster
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.replanner import RankReport, check_digests, follow_rates, merge_clusters, merge_profiles, merge_rows
from undertow.progress import SILENT
from undertow.runtime import subsets
from undertow.settings import Checksum
from undertow.sizing import Sizes
from undertow.tools.doctor.cluster import judge_cluster
from undertow.tools.doctor.collect import read_answer
from undertow.tools.doctor.facts import Package
from undertow.tools.doctor.findings import note
from undertow.tools.doctor.link_measurement import _RECEIVED, ConnectResult, LinkMeasurement
from undertow.tools.doctor.pairs import survey
from undertow.tools.doctor.probe_protocol import Echo, Give, Received, Take, read_probe_message
from undertow.tools.doctor.probe_server import _REQUESTS
from undertow.tools.doctor.rendezvous import (
    DoctorRendezvous,
    HostCard,
    HostGroup,
    HostList,
    _make_group,
    _read_card,
    _read_host_list,
)
from undertow.tools.doctor.view import _tables

pack = msgspec.msgpack.encode
RENDEZVOUS = DoctorRendezvous(names=["a", "b"], rank=1, address="127.0.0.1", port=29500, guard=b"", timeout_s=1.0)
CARD = HostCard(
    name="b",
    probe_address="127.0.0.1:4000",
    mark="m",
    protocol=1,
    versions={"undertow": "0.1", "torch": "2.4", "python": "3.11"},
    mtu=1500,
    speed_mbit=1000,
    settings={"UNDERTOW_PLAN": "auto"},
    findings=[note("network", "text")],
    hosts=2,
    timeout_s=60.0,
)


def run_rendezvous(data: bytes) -> None:
    """The same request from two, and time passes."""
    table = RendezvousTable()
    for who in ("one", "other"):
        table.join(who, _requests.decode(data), 100.0)
    deadline_s = table.next_deadline_s()
    assert deadline_s is None or 100.0 <= deadline_s < 1e10
    table.expire(200.0)
    table.leave("one")
    table.expire(1e10)


def run_reply(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(len(data).to_bytes(4, "little") + data[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        try:
            reply = _read_reply(ours, 2)
        except ConnectionResetError:
            return
        assert reply.failure or len(reply.payloads) == 2


def run_worker_card(data: bytes) -> None:
    card = formation._contacts.decode(data)
    for total_bytes in (0, 1000, 1 << 34):
        assert card.sizes.choose(total_bytes, shards=3) > 0
        assert card.sizes.choose(total_bytes, shards=3, bytes_per_s=1e8) > 0
    assert card.sizes.start > 0
    card.token.encode()
    parse_address(card.address)


def run_subset_entry(data: bytes) -> None:
    """What one of three ranks brings to the rendezvous of two of them."""
    own = msgspec.msgpack.encode(subsets._Entry(b"own card"))
    cards = subsets._SubsetRendezvous([0, 1], lambda title, entry: [own, data, own]).meet(b"own card")
    assert [type(card) for card in cards] == [bytes, bytes]


def run_subset_outcome(data: bytes) -> None:
    """How another rank says that it has joined, or why not."""
    causes = subsets._agree(None, lambda title, own: [own, data, own])
    assert isinstance(subsets._list_causes(causes), str)


def run_host_card(data: bytes) -> None:
    card = _records.decode(data)
    places = [HostRanks("a", 0, 2), HostRanks(card.host, 2, card.nproc)]
    assert all(place.describe(rank) for rank, place in enumerate(places))
    for address in (card.rendezvous, card.link_address):
        parse_address(address)


def run_launchers(data: bytes) -> None:
    """Bytes of a connection, to the first host and to another."""
    places = [HostRanks(name, rank, 1) for rank, name in enumerate("abc")]
    watches = [HostWatch(0, places, now_s=0.0), HostWatch(1, places, now_s=0.0)]
    watches[0].note_arrived(1, 0.0)
    with socket.socket() as unused:
        for watch, host in zip(watches, (1, 0), strict=True):
            connection = _Connection(unused, None)
            connection.received.feed(data)
            for body in iter(connection.received.take, None):
                watch.handle_message(host, _decoder.decode(body), 1.0)
                watch.tick(2.0)
            watch.note_closed(host)


def run_arbiter(data: bytes) -> None:
    """Lines of one worker, beside another one; what the arbiter shows must be readable."""
    state = ArbiterState()
    state.handle(1, hello_of("b"), 0.0)
    try:
        for number, line in enumerate(turns.make_lines().feed(data.rstrip(b"\n") + b"\n")):
            message = turns.to_arbiter.decode(line)
            if not isinstance(message, (turns.Query, turns.Stop)):
                _check_outgoing(state.handle(2, message, float(number)))
    finally:
        _check_outgoing(state.tick(100.0))
        status = turns.Status(pid=1, lease_s=1.0, up_s=1.0, devices=state.describe(101.0), notices=[*state.notices])
        assert turns.from_arbiter.decode(turns.encode(status)).devices == status.devices  # type: ignore[union-attr]
        _check_outgoing(state.remove(2, 102.0))


def _check_outgoing(outgoing: Any) -> None:
    for _, message in outgoing:
        turns.from_arbiter.decode(turns.encode(message).strip())


def run_worker_of_arbiter(data: bytes) -> None:
    state = TurnState()
    state.attach()
    state.take(0.0)
    for number, line in enumerate(turns.make_lines().feed(data.rstrip(b"\n") + b"\n")):
        for said in [*state.handle(turns.from_arbiter.decode(line), float(number)), *state.end_step(number + 0.5)]:
            turns.to_arbiter.decode(turns.encode(said).strip())
        state.take(number + 0.7)


def run_status_report(data: bytes) -> None:
    """Whatever a status report says, all views can show it."""
    job = make_job_state(2)
    job.add_report(decode(data), 100.5)
    job.add_history_point()
    snapshot = job.take_snapshot(101.0)
    assert write_metrics(snapshot)
    assert displays.describe(snapshot)
    msgspec.json.encode(snapshot)
    Console(file=io.StringIO(), width=100).print(dashboard.draw(snapshot, width=100, height=20))


def run_probe_message(data: bytes) -> None:
    for decoder in (_REQUESTS, _RECEIVED):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data[: 1 << 16])
            theirs.shutdown(socket.SHUT_WR)
            try:
                message = read_probe_message(ours, decoder)  # type: ignore[arg-type]
            except (ConnectionResetError, UndertowError):
                continue
            if isinstance(message, Received):
                assert message.rate_bytes_per_s >= 0


def run_doctor_card(data: bytes) -> None:
    card = _read_card(data, RENDEZVOUS, sender=1)
    surveyed = _survey(card, pack([ConnectResult.REACHED, ConnectResult.REACHED]), pack([]))
    assert isinstance(judge_cluster([CARD, card], surveyed), list)
    _show([CARD, card], surveyed)


def run_host_list(data: bytes) -> None:
    host_list = _read_host_list(data, RENDEZVOUS)
    _make_group(RENDEZVOUS, host_list)


def run_survey(data: bytes) -> None:
    """As what the other host has tried, and as what it has measured."""
    reached = pack([ConnectResult.REACHED, ConnectResult.REACHED])
    for row, results in ((data, pack([])), (reached, data)):
        surveyed = _survey(CARD, row, results)
        assert isinstance(judge_cluster([CARD, CARD], surveyed), list)
        _show([CARD, CARD], surveyed)


def _survey(card: HostCard, row: bytes, results: bytes) -> Any:
    own = {"reach": pack([ConnectResult.REACHED, ConnectResult.NOT_TRIED]), "results": pack([])}
    others = {"reach": row, "results": results}

    def exchange(meeting: str, payload: bytes, timeout_s: float) -> list[bytes]:
        what = meeting.rpartition(": ")[2]
        return [own.get(what, b""), others.get(what, b"")]

    alone = msgspec.structs.replace(card, probe_address="")
    return survey(HostGroup(0, [alone, alone], b"token", exchange), duration_s=0.1, progress=SILENT)


def _show(cards: list[HostCard], surveyed: Any) -> None:
    console = Console(file=io.StringIO(), width=100)
    for table in _tables(cards, surveyed):
        console.print(table)


def run_torch_answer(data: bytes) -> None:
    read_answer(Package("torch", "", "2.4"), 0, data.decode(errors="replace"), "")


def run_report(data: bytes) -> None:
    """What one rank has measured, beside another's."""
    reports = [msgspec.msgpack.decode(pack(REPORT), type=RankReport), _decode_report(data)]
    check_digests(reports)
    merge_rows(reports)
    cluster = merge_clusters([report.cluster for report in reports if report.cluster is not None])
    follow_rates(cluster, reports)
    merge_profiles([report.profile for report in reports if report.profile is not None])


def _decode_report(data: bytes) -> RankReport:
    from undertow.sync.planning import _report_decoder

    return _report_decoder.decode(data)


TENSOR = TensorProfile(name="fc.weight", shape=(64, 32), kind=LayerKind.LINEAR, rows=16.0)
REPORT = RankReport(
    bytes_per_s=1e8,
    arithmetic="cpu",
    cluster=Cluster(workers=2, bytes_per_s=1e8, flops_per_s=1e10, shard_flops_per_s=1e9),
    profile=Profile(layers=(LayerProfile(name="fc", tensors=(TENSOR,), forward_s=0.01, backward_s=0.02),)),
    rows={"fc.weight": 16.0},
    digests={"fc.weight": 77},
    inputs=5,
    obstacles={},
    wholes=("fc.weight",),
)


def run_loss(data: bytes) -> None:
    from undertow.sync.batches.losses import weigh
    from undertow.torch.data.weighing import _reports

    report = _reports.decode(data)
    for reports in (
        [report, report],
        [_reports.decode(list_losses()[0]), report],
        [report, _reports.decode(list_losses()[1])],
    ):
        weigh(reports, batch=4)


def list_losses() -> list[bytes]:
    from undertow.sync.batches import reports

    scales = reports.TermScales((4.0,), (), (False,))
    reduction = reports.Reduction(reports.ReductionKind.SUM, (4,), True, 4)
    terms = [
        reports.Term(reports.ReductionKind.MEAN, 8, (4, 2), is_loss=True),
        reports.Term(reports.ReductionKind.SUM, 8, (4, 2), scales=scales),
        reports.Term(reports.ReductionKind.COUNTED, 8, (4, 2), 3.0),
        reports.Term(reports.ReductionKind.OTHER, 8, (4, 2), reductions=(reduction,)),
    ]
    return [pack(reports.Report(4, (term,))) for term in terms]


def run_random_state(data: bytes) -> None:
    from undertow.torch.data.data_sharing import copy_from_first
    from undertow.torch.data.randomness import capture, restore

    before = capture()
    try:
        restore(copy_from_first(_Agreed(data), before))  # type: ignore[arg-type]
    finally:
        restore(before)


def list_states() -> list[bytes]:
    """The same in every process."""
    import numpy as np
    import torch

    from undertow.torch.data.randomness import capture, restore

    before = capture()
    try:
        torch.set_rng_state(torch.Generator().manual_seed(1).get_state())
        random.seed(1)
        np.random.seed(1)
        return [pack(capture())]
    finally:
        restore(before)


class _Agreed:
    """A group whose first rank has said this."""

    rank = 1

    def __init__(self, said: bytes) -> None:
        self._said = said

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        return self._said


def run_chosen_number(data: bytes) -> None:
    """What the first rank of a single-process script has measured, as the scheduler of another rank is told."""
    from undertow.script.replacements import step_on_plateau
    from undertow.script.single_process import SingleProcessScript
    from undertow.settings import Settings

    plain: Any = SingleProcessScript(Settings(rank=1, world_size=2))
    plain._group = _Agreed(data)
    told: list[object] = []
    step_on_plateau(lambda scheduler, metrics: told.append(metrics), plain)(None, 0.5)
    assert isinstance(told.pop(), float)


def run_status(data: bytes) -> None:
    """As `undertow share status` shows it."""
    status = turns.from_arbiter.decode(data)
    if isinstance(status, turns.Status):
        for width in (40, 200):
            Console(file=io.StringIO(), width=width).print(make_status(status, Path("arbiter")))


def make_targets() -> list[Target]:
    def of(name: str, samples: list[bytes], run: Callable[[bytes], object], **options: Any) -> Target:
        return Target(name=name, samples=samples, run=run, **{"mutate": damage_msgpack, **options})

    joins = [pack(Join("m", rank, 2, b"payload", 10.0, 9.5)) for rank in (0, 1)]
    replies = [pack(Reply([b"a", b"b"])), pack(Reply([], JoinFailure.ABSENT, "did not arrive", [1]))]
    card = formation.WorkerContact("10.0.0.1:4000", "unix:x", "mark", "host", "token", Sizes(), 0, Checksum.AUTO)
    failure = subsets._Failure("too many open files", (2,))
    launchers = [b"".join(map(streams.pack, [Beat(), Go(), Left(1), Met(), Goodbye()])), streams.pack(Lost("a cause"))]
    measured = LinkMeasurement(1, 0, 1e-4, 2e-4, 0.1, Received(10**9, 1.0), Received(10**9, 1.0))
    to_arbiter = [
        b"".join(map(turns.encode, [hello_of("a"), turns.Ask(1.0, 0.1), turns.Give(), turns.EndStep(1, 1, 0.5, 0.1)])),
        b"".join(map(turns.encode, [hello_of("a", growth_bytes=7, free_bytes=9), turns.Ask(), turns.Lift(3.0)])),
    ]
    from_arbiter = [
        b"".join(
            map(turns.encode, [turns.NowShared(), turns.Grant(1.0), turns.Recall(), turns.DeviceTime(1, 2.0, 0.5)])
        ),
        b"".join(map(turns.encode, [turns.NowAlone(), turns.Notice("text"), turns.Refusal("no")])),
    ]
    status_reports = [
        encode(make_report(1, 2)),
        encode(make_report(0, 3, state=Activity.WAITING, stands_for="x", stands_s=3.0)),
    ]
    probes = [streams.pack(Echo(5)), streams.pack(Take(1.0)), streams.pack(Give(1.0)), streams.pack(Received(10, 0.1))]
    rows = [pack([ConnectResult.REACHED, ConnectResult.REFUSED]), pack([measured])]
    state = ArbiterState()
    for number, name in enumerate("ab"):
        state.handle(number, hello_of(name), 0.0)
    status = turns.Status(pid=1, lease_s=1.0, up_s=1.0, devices=state.describe(1.0), notices=["text"])
    return [
        of(
            "rendezvous request",
            joins,
            run_rendezvous,
            decodes=("engine/coordinator/rendezvous_server.py",),
            allowed=(Garbled,),
        ),
        of("rendezvous reply", replies, run_reply, decodes=("engine/coordinator/rendezvous.py",)),
        of("worker card", [pack(card)], run_worker_card, decodes=("engine/client/formation.py",)),
        of("subset entry", [pack(subsets._Entry(b"card"))], run_subset_entry, decodes=("runtime/subsets.py",)),
        of("subset's outcome", [pack(None), pack(failure)], run_subset_outcome, decodes=("runtime/subsets.py",)),
        of(
            "host card",
            [pack(NodeRecord(2, "10.0.0.1:40", "token", True, "b", "10.0.0.1:41"))],
            run_host_card,
            decodes=("launch/host_rendezvous.py",),
        ),
        Target(name="launcher messages", decodes=("launch/launcher_link.py",), samples=launchers, run=run_launchers),
        of(
            "to the arbiter",
            to_arbiter,
            run_arbiter,
            decodes=("crossover/messages.py",),
            mutate=damage_lines,
            allowed=(Garbled,),
        ),
        of(
            "from the arbiter",
            from_arbiter,
            run_worker_of_arbiter,
            decodes=("crossover/messages.py",),
            mutate=damage_lines,
            allowed=(Garbled,),
        ),
        of(
            "status of the arbiter",
            [turns.encode(status).strip()],
            run_status,
            decodes=("crossover/messages.py",),
            mutate=damage_json,
            cost=8,
            allowed=(Garbled,),
        ),
        of(
            "status report",
            status_reports,
            run_status_report,
            decodes=("observe/meter/status_report.py",),
            cost=8,
            allowed=(Garbled,),
        ),
        Target(
            name="doctor letter",
            decodes=(
                "tools/doctor/probe_server.py",
                "tools/doctor/probe_protocol.py",
                "tools/doctor/link_measurement.py",
            ),
            samples=probes,
            run=run_probe_message,
        ),
        of("doctor card", [pack(CARD)], run_doctor_card, decodes=("tools/doctor/rendezvous.py",), cost=8),
        of(
            "doctor roster",
            [pack(HostList("token", [CARD, CARD]))],
            run_host_list,
            decodes=("tools/doctor/rendezvous.py",),
        ),
        of("doctor survey", rows, run_survey, decodes=("tools/doctor/rendezvous.py",), cost=8),
        of(
            "torch answer",
            [b'{"threads": 2, "devices": ["x"], "build": "cpu"}'],
            run_torch_answer,
            decodes=("tools/doctor/collect.py",),
            mutate=damage_json,
        ),
        of("measurements of a rank", [pack(REPORT)], run_report, decodes=("sync/planning.py",)),
        of("loss of a rank", list_losses(), run_loss, decodes=("torch/data/weighing.py",)),
        of("random state", list_states(), run_random_state, decodes=("torch/data/data_sharing.py",), cost=8),
        of(
            "number of the first rank",
            [pack(0.5), pack(float("nan"))],
            run_chosen_number,
            decodes=("script/single_process.py",),
            cost=2,
        ),
    ]
