"""Compares undertow and torch's Gloo at summing one large array over all workers, in one run.

    undertow run -n 4 --quiet-ranks benchmarks/sum.py

The systems take turns, round by round, so that a noisy machine affects all of them.
Gloo sums the array whole and in chunks; undertow is compared with the best chunk size.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import rich
import rich.table
import torch
import torch.distributed as dist

import undertow
import undertow.kvstore

MEBI = 1 << 20


def gloo_sum(tensor: torch.Tensor, chunk_bytes: int) -> None:
    chunks = tensor.split(chunk_bytes // tensor.element_size())
    for work in [dist.all_reduce(chunk, async_op=True) for chunk in chunks]:
        work.wait()


def measure(run: Callable[[], None], array: np.ndarray, expected: float) -> float:
    array[:] = undertow.rank() + 1
    undertow.barrier()
    started = time.perf_counter()
    run()
    undertow.barrier()
    seconds = time.perf_counter() - started
    assert (array == expected).all(), "the sum is wrong"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9, help="the first two warm up")
    options = parser.parse_args()

    torch.set_num_threads(1)
    undertow.init()
    dist.init_process_group("gloo")
    workers = undertow.world_size()
    array = np.zeros(options.mebibytes * MEBI // 4, np.float32)
    tensor = torch.from_numpy(array)
    kv = undertow.kvstore.create()
    kv.init("array", array)

    systems: dict[str, Callable[[], None]] = {
        "undertow, 1 MB slices": lambda: kv.pushpull("array", array, array).wait()
    }
    for chunk in (1, 4, 16, 64):
        systems[f"gloo, {chunk} MB chunks"] = lambda chunk=chunk: gloo_sum(tensor, chunk * MEBI)
    expected = workers * (workers + 1) / 2
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(options.rounds):
        for name, run in systems.items():
            seconds[name].append(measure(run, array, expected))

    if undertow.rank() == 0:
        medians = {name: statistics.median(values[2:]) for name, values in seconds.items()}
        best = min(value for name, value in medians.items() if name.startswith("gloo"))
        table = rich.table.Table(
            title=f"{options.mebibytes} MiB among {workers} workers, median of {options.rounds - 2}"
        )
        for column in ("system", "ms", "fastest", "slowest", "speed relative to the best gloo"):
            table.add_column(column, justify="left" if column == "system" else "right")
        for name, median in medians.items():
            kept = seconds[name][2:]
            row = (f"{value * 1e3:.0f}" for value in (median, min(kept), max(kept)))
            table.add_row(name, *row, f"{best / median:.2f}")
        rich.print(table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
