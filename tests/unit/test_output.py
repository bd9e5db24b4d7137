"""Lines keep their bytes and get their prefix; tails keep the last words."""

from __future__ import annotations

import random

import pytest

from undertow.launch import output
from undertow.launch.output import Lines, Tail, make_prefix


def feed_all(pieces: list[bytes], prefix: bytes = b"> ") -> bytes:
    lines = Lines(prefix)
    return b"".join(lines.feed(piece) for piece in pieces) + lines.finish()


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb\n"], b"> a\n> b\n"),
        ([b"a", b"b", b"\n", b"c\n"], b"> ab\n> c\n"),
        ([b"no end"], b"> no end\n"),
        ([b"\n\n"], b"> \n> \n"),
        ([b"dos\r\n"], b"> dos\r\n"),
        ([b"dos\r", b"\n"], b"> dos\r\n"),
        ([b"10%\r20%\rdone\n"], b"> 10%\r> 20%\r> done\n"),
        ([b"\r10%", b"\r20%", b"\n"], b"\r> 10%\r> 20%\n"),
        ([b"\xff\xfe\x00\n"], b"> \xff\xfe\x00\n"),
        ([], b""),
    ],
)
def test_lines_get_their_prefix(pieces: list[bytes], shown: bytes) -> None:
    assert feed_all(pieces) == shown


def test_a_complete_line_is_not_held_back() -> None:
    lines = Lines(b"> ")
    assert lines.feed(b"one\ntw") == b"> one\n"
    assert lines.feed(b"o\n") == b"> two\n"


def test_a_progress_bar_moves_before_its_line_ends() -> None:
    lines = Lines(b"> ")
    assert lines.feed(b"10%\r") == b""  # it might become \r\n
    assert lines.feed(b"20%") == b"> 10%\r"


def test_pieces_of_any_size_give_the_same_bytes() -> None:
    rng = random.Random(5)
    text = bytes(rng.choice(b"ab\n\r\xff") for _ in range(5000))
    whole = feed_all([text])
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(text)), 200))
        assert feed_all([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == whole
    assert whole.replace(b"> ", b"").rstrip(b"\n") == text.rstrip(b"\n")


def test_a_line_without_an_end_is_broken_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_LINE_BYTES", 10)
    lines = Lines(b"> ")
    assert lines.feed(b"x" * 8) == b""
    assert lines.feed(b"y" * 8) == b"> " + b"x" * 8 + b"y" * 8 + b"\n"
    assert lines.finish() == b""


def test_prefixes_are_coloured_on_request_only() -> None:
    assert make_prefix(2, coloured=False) == b"[rank 2] "
    coloured = make_prefix(2, coloured=True)
    assert coloured.startswith(b"\x1b[")
    assert coloured.endswith(b"[rank 2] \x1b[0m")
    assert make_prefix(1, coloured=True) != make_prefix(0, coloured=True).replace(b"0]", b"1]")


def tail_of(*pieces: bytes) -> tuple[str, ...]:
    tail = Tail()
    for piece in pieces:
        tail.feed(piece)
    return tail.lines()


def test_tail_keeps_short_output_whole() -> None:
    assert tail_of(b"a\nb", b"c\n", b"last") == ("a", "bc", "last")


def test_tail_keeps_the_last_lines_and_says_that_some_are_missing() -> None:
    lines = tail_of(b"".join(b"%d\n" % number for number in range(1000)))
    assert lines[0] == "(earlier lines left out)"
    assert lines[1:] == tuple(str(number) for number in range(1000 - output.TAIL_LINES, 1000))


def test_tail_of_exactly_its_size_is_whole() -> None:
    assert len(tail_of(b"x\n" * output.TAIL_LINES)) == output.TAIL_LINES


def test_tail_shows_the_last_state_of_an_overwritten_line() -> None:
    assert tail_of(b"10%\r20%\r30%\n", b"dos\r\n") == ("30%", "dos")


def test_tail_survives_bytes_that_are_no_text_and_endless_lines() -> None:
    assert tail_of(b"\xff\n") == ("\ufffd",)
    assert len(tail_of(b"x" * 1_000_000)[0]) == output.TAIL_LINE_BYTES
