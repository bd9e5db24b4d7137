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
import itertools
import logging
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
    signal.alarm(HANG_S)
    error = target.find_failure(data)
    signal.alarm(0)
    if error is not None and is_shown:
        print(f'FAILED  scripts/fuzz --replay "{target.name}" {seed}:{number}   ({len(data)} bytes)')
        print(f"        {data[:MOST_SHOWN_BYTES].hex()}\n        {pack_seed(data)[:MOST_SHOWN_BYTES]}")
        traceback.print_exception(error, limit=-6, file=sys.stdout)
    return error is None


def replay(target: Target, which: str) -> bool:
    seed, colon, number = which.partition(":")
    data = target.make_input(int(seed), int(number)) if colon else bytes.fromhex(which)
    error = target.find_failure(data)
    if error is not None:
        traceback.print_exception(error, file=sys.stdout)
    print("FAILED" if error else "passed")
    return error is None


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
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--seed", type=int, default=1, help="of the generator (1)")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "INPUT"), help="one input again: SEED:NUMBER or hex")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what servers say of strangers
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _give_up)
    targets = make_targets()
    try:
        if options.replay:
            name, which = options.replay
            return 0 if replay(next(target for target in targets if target.name == name), which) else 1
        chosen = [target for target in targets if options.only in target.name]
        taken, failed = fuzz(chosen, seed=options.seed, seconds=options.seconds)
    finally:
        for target in targets:
            target.finish()
    for target in chosen:
        print(f"{taken[target.name]:9}  {target.name}{f': {failed[target.name]} FAILED' * bool(failed[target.name])}")
    return 1 if failed.total() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
