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
from tests.unit.arbiters import hello_of
from tests.unit.live_samples import make_board, make_pulse
from undertow.coordinator.meeting import Complaint, Join, Meetings, Reply
from undertow.coordinator.meeting_point import _requests
from undertow.coordinator.rendezvous import _read_reply, parse_address
from undertow.crossover import messages as turns
from undertow.crossover.messages import Lines
from undertow.crossover.office import Office
from undertow.crossover.part import Part
from undertow.doctor.bulk import Received
from undertow.doctor.cards import Card, Circle, Roster
from undertow.doctor.cluster import judge_cluster
from undertow.doctor.door import _REQUESTS
from undertow.doctor.facts import Package
from undertow.doctor.findings import note
from undertow.doctor.gathering import Appointment, _form, _read_card, _read_roster
from undertow.doctor.letters import Echo, Give, Take, read_letter
from undertow.doctor.measuring import _RECEIVED, Measured
from undertow.doctor.pairs import survey
from undertow.doctor.reach import Reach
from undertow.doctor.torch_child import read_answer
from undertow.doctor.view import _tables
from undertow.errors import Garbled, UndertowError
from undertow.launch.host_line import _Connection, _decoder
from undertow.launch.host_watch import Beat, Go, Goodbye, HostPlace, HostWatch, Left, Lost, Met
from undertow.launch.nodes import NodeCard, _cards
from undertow.live import plain, terminal
from undertow.live.metrics import write_metrics
from undertow.live.pulse import State, decode, encode
from undertow.plan.cluster import Cluster
from undertow.plan.outlook import Report, check_digests, follow_rates, merge_clusters, merge_profiles, merge_rows
from undertow.plan.profile import Kind, LayerProfile, Profile, TensorProfile
from undertow.plan.sizing import Sizes
from undertow.report.sharing import make_status
from undertow.runtime import formation, subsets
from undertow.settings import Checksum
from undertow.watch import NOBODY

pack = msgspec.msgpack.encode
APPOINTMENT = Appointment(names=["a", "b"], rank=1, address="127.0.0.1", port=29500, guard=b"", timeout_s=1.0)
CARD = Card(
    name="b",
    door="127.0.0.1:4000",
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


def run_meetings(data: bytes) -> None:
    """The same request from two, and time passes."""
    meetings = Meetings()
    for who in ("one", "other"):
        meetings.join(who, _requests.decode(data), 100.0)
    deadline_s = meetings.next_deadline_s()
    assert deadline_s is None or 100.0 <= deadline_s < 1e10
    meetings.expire(200.0)
    meetings.leave("one")
    meetings.expire(1e10)


def run_reply(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(len(data).to_bytes(4, "little") + data[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        try:
            reply = _read_reply(ours, 2)
        except ConnectionResetError:
            return
        assert reply.complaint or len(reply.payloads) == 2


def run_worker_card(data: bytes) -> None:
    card = formation._cards.decode(data)
    for total_bytes in (0, 1000, 1 << 34):
        assert card.sizes.choose(total_bytes, shards=3) > 0
        assert card.sizes.choose(total_bytes, shards=3, bytes_per_s=1e8) > 0
    assert card.sizes.start > 0
    card.token.encode()
    parse_address(card.address)


def run_subset_bid(data: bytes) -> None:
    """What one of three ranks brings to the meeting of two of them."""
    own = msgspec.msgpack.encode(subsets._Bid(b"own card"))
    cards = subsets._Gathering([0, 1], lambda title, bid: [own, data, own]).meet(b"own card")
    assert [type(card) for card in cards] == [bytes, bytes]


def run_subset_outcome(data: bytes) -> None:
    """How another rank says that it has joined, or why not."""
    text = subsets._agree(None, lambda title, told: [told, data, told])
    assert isinstance(text, str)


def run_host_card(data: bytes) -> None:
    card = _cards.decode(data)
    places = [HostPlace("a", 0, 2), HostPlace(card.host, 2, card.nproc)]
    assert all(place.describe(rank) for rank, place in enumerate(places))
    for address in (card.rendezvous, card.line):
        parse_address(address)


def run_launchers(data: bytes) -> None:
    """Bytes of a connection, to the first host and to another."""
    places = [HostPlace(name, rank, 1) for rank, name in enumerate("abc")]
    watches = [HostWatch(0, places, now_s=0.0), HostWatch(1, places, now_s=0.0)]
    watches[0].note_arrived(1, 0.0)
    with socket.socket() as unused:
        for watch, host in zip(watches, (1, 0), strict=True):
            connection = _Connection(unused, None, received=bytearray(data))
            for body in connection.take_messages():
                watch.hear(host, _decoder.decode(body), 1.0)
                watch.tick(2.0)
            watch.note_closed(host)


def run_arbiter(data: bytes) -> None:
    """Lines of one worker, beside another one; what the arbiter shows must be readable."""
    office = Office()
    office.hear(1, hello_of("b"), 0.0)
    try:
        for number, line in enumerate(Lines().feed(data.rstrip(b"\n") + b"\n")):
            message = turns.decode_to_arbiter(line)
            if not isinstance(message, (turns.Query, turns.Stop)):
                _check_letters(office.hear(2, message, float(number)))
    finally:
        _check_letters(office.tick(100.0))
        status = turns.Status(pid=1, lease_s=1.0, up_s=1.0, devices=office.describe(101.0), notices=[*office.notices])
        assert turns.decode_from_arbiter(turns.encode(status)).devices == status.devices  # type: ignore[union-attr]
        _check_letters(office.gone(2, 102.0))


def _check_letters(letters: Any) -> None:
    for _, message in letters:
        turns.decode_from_arbiter(turns.encode(message).strip())


def run_worker_of_arbiter(data: bytes) -> None:
    part = Part()
    part.meet()
    part.take(0.0)
    for number, line in enumerate(Lines().feed(data.rstrip(b"\n") + b"\n")):
        for said in [*part.hear(turns.decode_from_arbiter(line), float(number)), *part.end_step(number + 0.5)]:
            turns.decode_to_arbiter(turns.encode(said).strip())
        part.take(number + 0.7)


def run_pulse(data: bytes) -> None:
    """Whatever a pulse says, all views can show it."""
    board = make_board(2)
    board.hear(decode(data), 100.5)
    board.note_history()
    picture = board.look(101.0)
    assert write_metrics(picture)
    assert plain.describe(picture)
    msgspec.json.encode(picture)
    Console(file=io.StringIO(), width=100).print(terminal.draw(picture, width=100, height=20))


def run_letter(data: bytes) -> None:
    for decoder in (_REQUESTS, _RECEIVED):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data[: 1 << 16])
            theirs.shutdown(socket.SHUT_WR)
            try:
                letter = read_letter(ours, decoder)  # type: ignore[arg-type]
            except (ConnectionResetError, UndertowError):
                continue
            if isinstance(letter, Received):
                assert letter.rate_bytes_per_s >= 0


def run_doctor_card(data: bytes) -> None:
    card = _read_card(data, APPOINTMENT)
    surveyed = _survey(card, pack([Reach.REACHED, Reach.REACHED]), pack([]))
    assert isinstance(judge_cluster([CARD, card], surveyed), list)
    _show([CARD, card], surveyed)


def run_roster(data: bytes) -> None:
    roster = _read_roster(data, APPOINTMENT)
    _form(APPOINTMENT, roster)


def run_survey(data: bytes) -> None:
    """As what the other host has tried, and as what it has measured."""
    reached = pack([Reach.REACHED, Reach.REACHED])
    for row, results in ((data, pack([])), (reached, data)):
        surveyed = _survey(CARD, row, results)
        assert isinstance(judge_cluster([CARD, CARD], surveyed), list)
        _show([CARD, CARD], surveyed)


def _survey(card: Card, row: bytes, results: bytes) -> Any:
    own = {"reach": pack([Reach.REACHED, Reach.NOT_TRIED]), "results": pack([])}
    others = {"reach": row, "results": results}

    def exchange(meeting: str, payload: bytes, timeout_s: float) -> list[bytes]:
        what = meeting.rpartition(": ")[2]
        return [own.get(what, b""), others.get(what, b"")]

    doorless = msgspec.structs.replace(card, door="")
    return survey(Circle(0, [doorless, doorless], b"token", exchange), duration_s=0.1, watch=NOBODY)


def _show(cards: list[Card], surveyed: Any) -> None:
    console = Console(file=io.StringIO(), width=100)
    for table in _tables(cards, surveyed):
        console.print(table)


def run_torch_answer(data: bytes) -> None:
    read_answer(Package("torch", "", "2.4"), 0, data.decode(errors="replace"), "")


def run_report(data: bytes) -> None:
    """What one rank has measured, beside another's."""
    reports = [msgspec.msgpack.decode(pack(REPORT), type=Report), _decode_report(data)]
    check_digests(reports)
    merge_rows(reports)
    cluster = merge_clusters([report.cluster for report in reports if report.cluster is not None])
    follow_rates(cluster, reports)
    merge_profiles([report.profile for report in reports if report.profile is not None])


def _decode_report(data: bytes) -> Report:
    from undertow.torch.planning import _reports

    return _reports.decode(data)


TENSOR = TensorProfile(name="fc.weight", shape=(64, 32), kind=Kind.LINEAR, rows=16.0)
REPORT = Report(
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
    from undertow.torch.data.losses import weigh
    from undertow.torch.data.weighing import _reports

    report = _reports.decode(data)
    for reports in (
        [report, report],
        [_reports.decode(list_losses()[0]), report],
        [report, _reports.decode(list_losses()[1])],
    ):
        weigh(reports, batch=4)


def list_losses() -> list[bytes]:
    from undertow.torch.data import reports

    scales = reports.Scales((4.0,), (), (False,))
    stage = reports.Stage(reports.Kind.SUM, (4,), True, 4)
    terms = [
        reports.Term(reports.Kind.MEAN, 8, (4, 2), is_loss=True),
        reports.Term(reports.Kind.SUM, 8, (4, 2), scales=scales),
        reports.Term(reports.Kind.COUNTED, 8, (4, 2), 3.0),
        reports.Term(reports.Kind.OTHER, 8, (4, 2), stages=(stage,)),
    ]
    return [pack(reports.Report(4, (term,))) for term in terms]


def run_random_state(data: bytes) -> None:
    from undertow.torch.data.randomness import capture, restore
    from undertow.torch.data.sharing import copy_from_first

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
    from undertow.script.plain import Plain
    from undertow.script.standins import step_on_plateau
    from undertow.settings import Settings

    plain: Any = Plain(Settings(rank=1, world_size=2))
    plain._group = _Agreed(data)
    told: list[object] = []
    step_on_plateau(lambda scheduler, metrics: told.append(metrics), plain)(None, 0.5)
    assert isinstance(told.pop(), float)


def run_status(data: bytes) -> None:
    """As `undertow share status` shows it."""
    status = turns.decode_from_arbiter(data)
    if isinstance(status, turns.Status):
        for width in (40, 200):
            Console(file=io.StringIO(), width=width).print(make_status(status, Path("arbiter")))


def make_targets() -> list[Target]:
    def of(name: str, samples: list[bytes], run: Callable[[bytes], object], **options: Any) -> Target:
        return Target(name=name, samples=samples, run=run, **{"mutate": damage_msgpack, **options})

    joins = [pack(Join("m", rank, 2, b"payload", 10.0, 9.5)) for rank in (0, 1)]
    replies = [pack(Reply([b"a", b"b"])), pack(Reply([], Complaint.ABSENT, "rank 1 did not arrive"))]
    card = formation.Card("10.0.0.1:4000", "unix:x", "mark", "host", "token", Sizes(), 0, Checksum.AUTO)
    failure = subsets._Failure("too many open files", 1.5)
    launchers = [b"".join(map(_with_length, [Beat(), Go(), Left(1), Met(), Goodbye()])), _with_length(Lost("a cause"))]
    measured = Measured(1, 0, 1e-4, 2e-4, 0.1, Received(10**9, 1.0), Received(10**9, 1.0))
    to_arbiter = [
        b"".join(map(turns.encode, [hello_of("a"), turns.Ask(1.0, 0.1), turns.Give(), turns.EndStep(1, 1, 0.5, 0.1)])),
        b"".join(map(turns.encode, [hello_of("a", growth_bytes=7, free_bytes=9), turns.Ask(), turns.Lift(3.0)])),
    ]
    from_arbiter = [
        b"".join(map(turns.encode, [turns.Company(), turns.Grant(1.0), turns.Recall(), turns.Standing(1, 2.0, 0.5)])),
        b"".join(map(turns.encode, [turns.Solitude(), turns.Notice("text"), turns.Refusal("no")])),
    ]
    pulses = [encode(make_pulse(1, 2)), encode(make_pulse(0, 3, state=State.WAITING, stands_for="x", stands_s=3.0))]
    letters = [_with_length(Echo(5)), _with_length(Take(1.0)), _with_length(Give(1.0)), _with_length(Received(10, 0.1))]
    rows = [pack([Reach.REACHED, Reach.REFUSED]), pack([measured])]
    office = Office()
    for number, name in enumerate("ab"):
        office.hear(number, hello_of(name), 0.0)
    status = turns.Status(pid=1, lease_s=1.0, up_s=1.0, devices=office.describe(1.0), notices=["text"])
    return [
        of(
            "rendezvous request",
            joins,
            run_meetings,
            decodes=("coordinator/meeting_point.py",),
            allowed=(Garbled,),
        ),
        of("rendezvous reply", replies, run_reply, decodes=("coordinator/rendezvous.py",)),
        of("worker card", [pack(card)], run_worker_card, decodes=("runtime/formation.py",)),
        of("subset's bid", [pack(subsets._Bid(b"card"))], run_subset_bid, decodes=("runtime/subsets.py",)),
        of("subset's outcome", [pack(None), pack(failure)], run_subset_outcome, decodes=("runtime/subsets.py",)),
        of(
            "host card",
            [pack(NodeCard(2, "10.0.0.1:40", "token", True, "b", "10.0.0.1:41"))],
            run_host_card,
            decodes=("launch/nodes.py",),
        ),
        Target(name="launcher messages", decodes=("launch/host_line.py",), samples=launchers, run=run_launchers),
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
        of("pulse", pulses, run_pulse, decodes=("live/pulse.py",), cost=8, allowed=(Garbled,)),
        Target(
            name="doctor letter",
            decodes=("doctor/door.py", "doctor/letters.py", "doctor/measuring.py"),
            samples=letters,
            run=run_letter,
        ),
        of("doctor card", [pack(CARD)], run_doctor_card, decodes=("doctor/cards.py",), cost=8),
        of("doctor roster", [pack(Roster("token", [CARD, CARD]))], run_roster, decodes=("doctor/cards.py",)),
        of("doctor survey", rows, run_survey, decodes=("doctor/cards.py",), cost=8),
        of(
            "torch answer",
            [b'{"threads": 2, "devices": ["x"], "build": "cpu"}'],
            run_torch_answer,
            decodes=("doctor/torch_child.py",),
            mutate=damage_json,
        ),
        of("measurements of a rank", [pack(REPORT)], run_report, decodes=("torch/planning.py",)),
        of("loss of a rank", list_losses(), run_loss, decodes=("torch/data/weighing.py",)),
        of("random state", list_states(), run_random_state, decodes=("torch/data/sharing.py",), cost=8),
        of(
            "number of the first rank",
            [pack(0.5), pack(float("nan"))],
            run_chosen_number,
            decodes=("script/plain.py",),
            cost=2,
        ),
    ]


def _with_length(message: Any) -> bytes:
    body = pack(message)
    return len(body).to_bytes(4, "little") + body
