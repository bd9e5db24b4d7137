"""Damaged input for every decoder and the code behind it: a short run of `scripts/fuzz`, and its earlier findings."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undertow
from tests.fuzz import files, mutation, runner, wire
from tests.fuzz.target import Target
from undertow.decoding import Decoder
from undertow.engine.coordinator.messages import Message

SEED, INPUTS = 1, 40
SOURCE = Path(undertow.__file__).parent
TARGETS = {target.name: target for target in runner.make_targets()}


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Servers say what they refuse."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    for target in TARGETS.values():
        target.finish()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_damaged_input_raises_nothing_but_our_own_errors(target: Target) -> None:
    for number in range(max(4, INPUTS // target.cost)):
        error = target.find_failure(target.make_input(SEED, number))
        assert error is None, f'scripts/fuzz --replay "{target.name}" {SEED}:{number}: {error!r}'


@pytest.mark.parametrize(
    ("name", "data"), list(runner.read_seeds()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_was_found_before_stays_mended(name: str, data: bytes) -> None:
    assert TARGETS[name].find_failure(data) is None


def test_samples_are_read_without_an_error() -> None:
    """Else their damaged copies would never get further than the decoder."""
    for target in TARGETS.values():
        for sample in target.samples:
            if target.name != "carried error":  # which it raises again
                target.run(sample)


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("results file", "make_table"),
        ("results file", "make_comparison_table"),
        ("results page", "make_page"),
        ("results and predictions", "make_pair_table"),
        ("profile file", "make_pair_table"),
        ("cluster file", "make_points"),
        ("traces of all ranks", "make_step_page"),
    ],
)
def test_a_sample_comes_to_the_code_behind_the_decoder(name: str, behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    real = getattr(files, behind)

    def note(*given: Any, **options: Any) -> Any:
        called.append(behind)
        return real(*given, **options)

    monkeypatch.setattr(files, behind, note)
    for sample in TARGETS[name].samples:
        TARGETS[name].run(sample)
    assert called


def test_the_same_seed_gives_the_same_input() -> None:
    samples = [b'{"name": "x", "number": 1}']
    one, other = (mutation.damage_json(random.Random(7), samples) for _ in range(2))
    assert one == other != samples[0]


def test_every_process_makes_the_same_inputs() -> None:
    code = (
        "import json; from tests.fuzz import runner; "
        f"print(json.dumps(runner.digest_inputs(runner.make_targets(), seed={SEED}, inputs=8)))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7" if os.environ.get("PYTHONHASHSEED") != "7" else "8"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(other.stdout) == runner.digest_inputs(list(TARGETS.values()), seed=SEED, inputs=8)


def test_every_control_message_is_a_sample() -> None:
    """Those that are none would be decoded by nobody's luck."""
    assert {type(message) for message in wire.CONTROL} == set(typing.get_args(Message))


def test_every_decoder_has_a_target() -> None:
    """Whoever adds one thinks of its damaged input, too."""
    found = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if re.search(r"\bDecoder\[", path.read_text())
    }
    driven = {file for target in TARGETS.values() for file in target.decodes}
    assert found <= driven
    assert driven <= found


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_drives_the_decoders_it_names(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: set[str] = set()
    homes: dict[Decoder[Any], str] = {}
    decode = Decoder.decode

    def note(self: Decoder[Any], data: Any) -> Any:
        """Who calls it, and whose it is."""
        if self not in homes:
            homes[self] = _find_home(self)
        driven.update((sys._getframe(1).f_code.co_filename, homes[self]))
        return decode(self, data)

    monkeypatch.setattr(Decoder, "decode", note)
    for number in range(len(target.samples)):
        target.find_failure(target.make_input(SEED, number))
    assert {str(SOURCE / file) for file in target.decodes} - driven == set()


def _find_home(decoder: Decoder[Any]) -> str:
    """The module that says in an annotation that this decoder is its own; none of one that is made for a call."""
    for name, module in list(sys.modules.items()):
        if name.startswith("undertow."):
            names = vars(module).get("__annotations__", ())
            if any(vars(module).get(each) is decoder for each in names):
                return str(module.__file__)
    return ""


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_what_is_wrong_with_one_trace_is_seen_beside_the_others(cut: int) -> None:
    """The other ranks' traces are whole, so that what was lost is looked for in them."""
    made = [event for event in files.TRACES[cut].splitlines() if b"wire-in" not in event]
    read = _read_traces(bytes([cut]) + b"\n".join(made))
    assert sorted(read.ranks) == [0, 1, 2]
    assert [rank for rank, trace in read.ranks.items() if not trace.ins] == [cut]


def _read_traces(data: bytes) -> Any:
    read: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        real = files.read_trace
        patch.setattr(files, "read_trace", lambda folder: read.append(real(folder)) or read[-1])
        TARGETS["traces of all ranks"].run(data)
    return read[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nosuch"], "no target has 'nosuch' in its name"),
        (["--replay", "nosuch", "1:1"], "there is no target 'nosuch'"),
        (["--replay", "plan file", "1:x"], "'1:x' is no input"),
        (["--replay", "plan file", "1:-1"], "'1:-1' is no input"),
        *((["--seconds", text], text) for text in ("nan", "inf", "0", "-1", "86401", "long")),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "fuzz", lambda *given, **options: pytest.fail("it begins"))
    monkeypatch.setattr(runner, "_prepare", lambda targets: pytest.fail("it begins"))
    with pytest.raises(SystemExit) as ended:
        runner.main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[-1]
    assert "error: " in said[-1]
