"""`undertow plan`: which way every tensor would take, and why."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.progress import open_console, open_watch
from undertow.errors import ConfigError, PlanError
from undertow.lab.bandwidth import format_bandwidth, parse_bandwidth
from undertow.launch.guard import Guard
from undertow.plain_text import clean_json
from undertow.plan.cluster import PAYLOAD_SHARE, Cluster
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import Choice, Plan
from undertow.plan.planner import AUTO, POLICIES, make_plan, show_bytes
from undertow.report.safe_text import Text
from undertow.report.table import start_table
from undertow.sim.subject import find_subject, read_subject, take_measured


def plan(
    script: Annotated[
        str | None,
        typer.Argument(
            help="A training script: its first steps are run on one worker, then it ends.", metavar="SCRIPT"
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Everything after SCRIPT belongs to the script.", metavar="ARGS")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model of the zoo instead; `undertow bench --list` names them.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="What --save-profile wrote, instead: nothing is run.", metavar="FILE"),
    ] = None,
    hosts: Annotated[int, figure("--hosts", bounds=bounds.NODES, help="Number of hosts, with one worker each.")] = 4,
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Speed of every link, each way, such as 10gbit.")
    ] = "10gbit",
    batch: Annotated[
        int | None,
        figure(
            "--batch", bounds=bounds.BATCH, help="Samples per host and step of a model of the zoo; else as published."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", help=f"{AUTO} for the fastest, or one of {', '.join(POLICIES[1:])}.")
    ] = AUTO,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON, too.", metavar="FILE.json")] = None,
    save_profile: Annotated[
        Path | None,
        typer.Option("--save-profile", help="Keep what was measured of SCRIPT, for --profile.", metavar="FILE"),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Say which way every tensor of a model would take, how many bytes that is, and why.

    Example: undertow plan --model vgg19 --hosts 16 --bandwidth 10gbit --batch 32

    Example: undertow plan --hosts 4 --bandwidth 1gbit --save-profile train.json train.py --epochs 3

    Example: undertow plan --hosts 8 --bandwidth 10gbit --profile train.json
    """
    with one_line_errors("undertow plan", debug=debug):
        rate = parse_bandwidth(bandwidth, "--bandwidth")
        args, behind = _find_save_profile(args or ())
        save_profile = save_profile or behind
        if sum(choice is not None for choice in (script, model, profile)) != 1:
            raise ConfigError("give a script, or --model with the name of a model, or --profile with a file")
        _check_options(script, model, batch=batch, save_profile=save_profile)
        if model is not None:
            subject = find_subject(model, batch)
        elif profile is not None:
            subject = read_subject(profile)
        else:
            subject = take_measured(str(script), _measure(str(script), args, keep=save_profile))
        figures = dataclasses.asdict(subject.device)
        cluster = Cluster(workers=hosts, bytes_per_s=rate / 8 * PAYLOAD_SHARE, **figures)
        made = make_plan(subject.profile, cluster, policy=policy, has_gates=subject.has_gates)
        if out is not None:
            made.write(out)
        if is_json:
            print(clean_json(made.to_json()))
            return 0
        open_console().print(make_plan_table(made, title=f"{subject.title}, {hosts} hosts, {format_bandwidth(rate)}"))
        return 0
    raise AssertionError("one_line_errors ends the command")


def _check_options(script: str | None, model: str | None, *, batch: int | None, save_profile: Path | None) -> None:
    """Now, not after the first steps of a script."""
    if model is None and batch is not None:
        raise ConfigError("--batch is for models of the zoo: a script, or its profile, has its own")
    if save_profile is None:
        return
    if script is None:
        raise ConfigError(f"--save-profile {save_profile} keeps what was measured of a script: give one")
    if not save_profile.parent.is_dir():
        raise ConfigError(f"--save-profile {save_profile}: the folder {save_profile.parent} is not there")
    if save_profile.is_dir():
        raise ConfigError(f"--save-profile {save_profile} is a folder: give the name of a file")


def _find_save_profile(args: Sequence[str]) -> tuple[list[str], Path | None]:
    """People write this option behind the script as well, where all others are the script's own."""
    rest: list[str] = []
    found: Path | None = None
    words = iter(args)
    for word in words:
        name, is_joined, value = word.partition("=")
        if name != "--save-profile":
            rest.append(word)
        elif not (value := value if is_joined else next(words, "")):
            raise ConfigError("--save-profile needs the name of a file")
        else:
            found = Path(value)
    return rest, found


def _measure(script: str, args: Sequence[str], *, keep: Path | None) -> Measured:
    """Run the first steps of a script; what it prints goes to stderr."""
    if not Path(script).exists():
        raise ConfigError(f"there is no script {script}")
    # The guard ends the run and removes the folder, should this process be killed.
    with closing(Guard()) as guard, tempfile.TemporaryDirectory(prefix="undertow-plan-") as folder:
        guard.remove(Path(folder).absolute())
        path = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "undertow", "run", "-n", "1", script, *args]
        environment = {**os.environ, "UNDERTOW_PROFILE": str(path)}
        code = _run(command, environment, f"running the first steps of {Path(script).name}", guard)
        if not path.exists():
            ended = "ended" if code == 0 else f"failed with code {code}"
            raise PlanError(
                f"{script} {ended} before its first steps were measured: it takes a model that "
                "undertow.torch.parallelize or DistributedDataParallel has wrapped, and four steps of training"
            )
        measured = read_measured(path)
    if keep is not None:
        measured.write(keep)
    return measured


def _run(command: Sequence[str], environment: Mapping[str, str], what: str, guard: Guard) -> int:
    """What the command prints goes through Python's stderr, where it does not get into the way of a bar."""
    with (
        open_watch() as watch,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        guard.watch_launcher(process.pid)
        watch.say(what)
        assert process.stdout
        try:
            for line in process.stdout:
                print(line, end="", file=sys.stderr, flush=True)
            return process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            guard.forget(process.pid)


_COLUMNS: tuple[tuple[str, Literal["left", "right"], Callable[[Choice], str]], ...] = (
    ("tensor", "left", lambda choice: choice.tensor),
    ("shape", "left", lambda choice: " x ".join(map(str, choice.shape))),
    ("scheme", "left", lambda choice: choice.scheme.value),
    ("out", "right", lambda choice: show_bytes(choice.bytes_out)),
    ("alone, ms", "right", lambda choice: f"{choice.alone_s * 1e3:.3g}"),
    ("P*", "right", lambda choice: "" if choice.break_even is None else f"{choice.break_even:.0f}"),
    ("reason", "left", lambda choice: choice.reason),
)


def make_plan_table(made: Plan, *, title: str = "") -> Table:
    """One row per tensor, the totals below."""
    table = start_table(title, describe_plan(made))
    for heading, justify, _ in _COLUMNS:
        table.add_column(Text(heading), justify=justify)
    for choice in made.choices:
        table.add_row(*(Text(show(choice)) for _, _, show in _COLUMNS))
    return table


def describe_plan(made: Plan) -> str:
    """The totals, in words."""
    sums: dict[str, list[Choice]] = {}
    for choice in made.choices:
        sums.setdefault(choice.scheme.value, []).append(choice)
    return "\n".join(
        [
            f"predicted step: {_show_step(made.step_s, made)}, {show_bytes(made.bytes_out)} out per host and step",
            *(f"{name}: {_count(choices)}" for name, choices in sums.items()),
            "each scheme alone, wherever it is possible: "
            + ", ".join(f"{name} {_show_step(step_s, made)}" for name, step_s in made.alone.items()),
            "alone, ms: from a gradient to the mean of all, if nothing else were on its way",
            "P*: from so many workers on, factors would send more than a dense gradient",
        ]
    )


def _show_step(step_s: float, made: Plan) -> str:
    return f"{step_s * 1e3:.0f} ms ({step_s / made.compute_s:.2f} x compute)"


def _count(choices: Sequence[Choice]) -> str:
    noun = "tensor" if len(choices) == 1 else "tensors"
    return f"{len(choices)} {noun}, {show_bytes(sum(choice.bytes_out for choice in choices))}"
