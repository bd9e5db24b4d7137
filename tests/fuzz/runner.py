"""`scripts/fuzz`: drives every decoder, and the code behind it, with damaged input for a while.

    scripts/fuzz --seconds 600 --seed 1          all targets, in turn
    scripts/fuzz --only "control" --seconds 60   one of them
    scripts/fuzz --replay "control" 1:4711       one input again, by its seed and number
    scripts/fuzz --replay "control" HEX          the same by its bytes

In: a seed.  Out: how many inputs each target took; of each failure the target, the numbers, the bytes and the error.
Bytes of failures that were mended belong into tests/fuzz/seeds, which tests/unit/test_fuzz.py replays.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import logging
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fuzz.target import Target

SEEDS = Path(__file__).with_name("seeds")
TELL_EVERY_S = 10.0
HANG_S = 30
MOST_MEMORY_BYTES = 16 << 30  # of addresses: what a decoder is made to allocate must fail before the machine does
MOST_SHOWN_BYTES = 2000
MOST_SECONDS = 86400


def make_targets() -> list[Target]:
    from tests.fuzz import files, live, peers, wire

    return [target for module in (wire, peers, live, files) for target in module.make_targets()]


def fuzz(targets: Sequence[Target], *, seed: int, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """Returns how many inputs each target took, and how many of them failed."""
    taken: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    begin_s = told_s = time.monotonic()
    for turn in itertools.count():
        for target in targets:
            if turn % target.cost:
                continue
            number = taken[target.name]
            taken[target.name] += 1
            failed[target.name] += not try_one(target, seed, number, is_shown=failed[target.name] < 5)
        now_s = time.monotonic()
        if now_s - told_s >= TELL_EVERY_S or now_s - begin_s >= seconds:
            told_s = now_s
            print(f"{now_s - begin_s:5.0f} s  {taken.total()} inputs, {failed.total()} failures", flush=True)
        if now_s - begin_s >= seconds:
            return taken, failed
    raise AssertionError("it never ends otherwise")


def try_one(target: Target, seed: int, number: int, *, is_shown: bool = True) -> bool:
    data = target.make_input(seed, number)
    error = _drive(target, data)
    if error is not None and is_shown:
        print(f'FAILED  scripts/fuzz --replay "{target.name}" {seed}:{number}   ({len(data)} bytes)')
        print(f"        {data[:MOST_SHOWN_BYTES].hex()}\n        {pack_seed(data)[:MOST_SHOWN_BYTES]}")
        traceback.print_exception(error, limit=-6, file=sys.stdout)
    return error is None


def replay(target: Target, data: bytes) -> bool:
    error = _drive(target, data)
    if error is not None:
        traceback.print_exception(error, file=sys.stdout)
    print("FAILED" if error else "passed")
    return error is None


def _drive(target: Target, data: bytes) -> Exception | None:
    signal.alarm(HANG_S)
    try:
        return target.find_failure(data)
    finally:
        signal.alarm(0)


def digest_inputs(targets: Sequence[Target], *, seed: int, inputs: int) -> dict[str, str]:
    """Of each target a digest of its samples and of so many inputs: the same in every process."""
    return {
        target.name: hashlib.sha256(
            b"".join(target.make_input(seed, number) for number in range(len(target.samples) + inputs))
        ).hexdigest()
        for target in targets
    }


def read_seeds() -> Iterator[tuple[str, bytes]]:
    """Inputs that were failures once: the target's name and the bytes."""
    for line in SEEDS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, packed = line.rpartition(" ")
            yield name, zlib.decompress(base64.b85decode(packed))


def pack_seed(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 9)).decode()


def _give_up(signum: int, frame: object) -> None:
    raise RuntimeError(f"it hangs: no answer within {HANG_S} s")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Drive every decoder with damaged input.")
    parser.add_argument("--seconds", type=_read_seconds, default=600.0, help="how long (600)")
    parser.add_argument("--seed", type=int, default=1, help="of the generator (1)")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "INPUT"), help="one input again: SEED:NUMBER or hex")
    options = parser.parse_args(arguments)
    targets = make_targets()
    try:
        if options.replay:
            target, data = _find_input(parser, targets, *options.replay)
            _prepare([target])
            return 0 if replay(target, data) else 1
        chosen = [target for target in targets if options.only in target.name]
        if not chosen:
            parser.error(f"no target has {options.only!r} in its name; there are: {_name(targets)}")
        _prepare(chosen)
        taken, failed = fuzz(chosen, seed=options.seed, seconds=options.seconds)
    finally:
        for target in targets:
            target.finish()
    for target in chosen:
        print(f"{taken[target.name]:9}  {target.name}{f': {failed[target.name]} FAILED' * bool(failed[target.name])}")
    return 1 if failed.total() else 0


def _prepare(targets: Sequence[Target]) -> None:
    """What is imported and opened with the first input takes its time, and must not be interrupted."""
    logging.disable(logging.CRITICAL)  # what servers say of strangers
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _give_up)
    for target in targets:
        target.find_failure(target.samples[0])


def _read_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= MOST_SECONDS:  # nor is NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not possible: give more than 0 and at most {MOST_SECONDS}")
    return seconds


def _find_input(
    parser: argparse.ArgumentParser, targets: Sequence[Target], name: str, which: str
) -> tuple[Target, bytes]:
    """Ends with an error in one line if there is no such target, or no such input."""
    target = next((target for target in targets if target.name == name), None)
    if target is None:
        parser.error(f"there is no target {name!r}; there are: {_name(targets)}")
    numbers = re.fullmatch(r"(-?[0-9]{1,20}):([0-9]{1,20})", which)
    if numbers is not None:
        return target, target.make_input(int(numbers[1]), int(numbers[2]))
    try:
        return target, bytes.fromhex(which)
    except ValueError:
        parser.error(f"{which!r} is no input: give SEED:NUMBER, such as 1:4711, or bytes in hex")


def _name(targets: Sequence[Target]) -> str:
    return ", ".join(target.name for target in targets)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
