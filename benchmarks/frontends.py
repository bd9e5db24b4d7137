"""Compares unmodified scripts, through every frontend, with torch's DDP on the same emulated hosts.

    sudo .venv/bin/python benchmarks/frontends.py --hosts 2 --bandwidth 1gbit

The frontends take turns, round by round, so that a noisy machine affects all of them; each figure is the median
of the rounds' medians.  The scripts are in `frontends/`: one for torchrun, one for Horovod, one for a single process.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import rich
import rich.progress
import rich.table

SCRIPTS = Path(__file__).parent / "frontends"
FRONTENDS = {
    "torch DDP (--ddp off)": ("ddp.py", {"UNDERTOW_DDP": "off"}),
    "DDP script": ("ddp.py", {}),
    "DDP script, --overlap": ("ddp.py", {"UNDERTOW_OVERLAP": "on"}),
    "script for one process": ("plain.py", {}),
    "script for one process, --overlap": ("plain.py", {"UNDERTOW_OVERLAP": "on"}),
    "Horovod script": ("horovod_script.py", {}),
}
PEER = next(iter(FRONTENDS))


def measure(frontend: str, options: argparse.Namespace) -> float:
    """Return the milliseconds of a step."""
    script, environment = FRONTENDS[frontend]
    lab = ["lab", "run", "--hosts", options.hosts, "--bandwidth", options.bandwidth, "--quiet-ranks", "--no-check"]
    words = [sys.executable, "-m", "undertow", *lab, SCRIPTS / script, options.hosts]
    done = subprocess.run(
        [str(word) for word in words], env={**os.environ, **environment}, capture_output=True, text=True
    )
    found = re.search(r"step ([\d.]+) ms", done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"{frontend} failed:\n{done.stdout}\n{done.stderr}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    rounds = [(number, frontend) for number in range(options.rounds) for frontend in FRONTENDS]
    figures: dict[str, list[float]] = {frontend: [] for frontend in FRONTENDS}
    for _, frontend in rich.progress.track(rounds, "measuring", console=rich.console.Console(stderr=True)):
        figures[frontend].append(measure(frontend, options))

    table = rich.table.Table(title=f"{options.hosts} hosts, {options.bandwidth}, {options.rounds} rounds")
    for heading in ("frontend", "ms per step", "rounds", "torch DDP takes"):
        table.add_column(heading)
    peer = statistics.median(figures[PEER])
    for frontend, values in figures.items():
        own = statistics.median(values)
        table.add_row(
            frontend, f"{own:.0f}", f"{min(values):.0f} to {max(values):.0f}", f"{peer / own:.2f} times as long"
        )
    rich.print(table)


if __name__ == "__main__":
    main()
