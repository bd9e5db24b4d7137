"""`undertow plan`: shows the scheme that each tensor of a model would have, and why."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import Debug, ScriptArguments, ZooBatch, option
from undertow.cli.progress import open_console, open_progress
from undertow.cli.results import check_output
from undertow.errors import ConfigError, PlanError
from undertow.launch.cleanup_guard import CleanupGuard
from undertow.observe.report.table import Justify, fill_table
from undertow.plain_text import clean_json
from undertow.plan.cluster import PAYLOAD_SHARE, Cluster
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import Choice, Plan
from undertow.plan.planner import AUTO, POLICIES, make_plan
from undertow.tools.sim.subject import find_subject, read_subject, take_measured
from undertow.units import format_bandwidth, format_bytes, format_ms, format_ms_figure, format_quantity, parse_bandwidth

_Script = Annotated[
    str | None,
    typer.Argument(
        help="Run this training script on one worker, measure its first steps, then end it.", metavar="SCRIPT"
    ),
]
_Model = Annotated[
    str | None, option("--model NAME", "Plan a model of the zoo instead; `undertow bench --list` lists them.")
]
_Profile = Annotated[
    Path | None, option("--profile FILE", "Read a file of --save-profile instead of running a script.")
]
_Hosts = Annotated[int, option("--hosts N", "Plan for N hosts, with one worker each.", bounds=bounds.NODES)]
_Bandwidth = Annotated[str, option("--bandwidth SPEED", "Plan for links of this speed, each way, such as 10gbit.")]
_Policy = Annotated[
    str,
    option(
        "--policy POLICY",
        f"Choose schemes by {AUTO} (the fastest for each tensor) or one of {', '.join(POLICIES[1:])}.",
    ),
]
_Out = Annotated[Path | None, option("--out FILE.json", "Write the plan to this file as well, as JSON.")]
_SaveProfile = Annotated[
    Path | None, option("--save-profile FILE", "Save the measurements of SCRIPT to this file, for --profile.")
]


def plan(
    script: _Script = None,
    args: ScriptArguments = None,
    model: _Model = None,
    profile: _Profile = None,
    hosts: _Hosts = 4,
    bandwidth: _Bandwidth = "10gbit",
    batch: ZooBatch = None,
    policy: _Policy = AUTO,
    out: _Out = None,
    save_profile: _SaveProfile = None,
    is_json: Annotated[bool, option("--json", "Print JSON instead of a table.")] = False,
    debug: Debug = False,
) -> int:
    """Show the scheme that each tensor of a model would have, how many bytes it sends, and why.

    Example: undertow plan --model vgg19 --hosts 16 --bandwidth 10gbit --batch 32

    Example: undertow plan --hosts 4 --bandwidth 1gbit --save-profile train.json train.py --epochs 3

    Example: undertow plan --hosts 8 --bandwidth 10gbit --profile train.json
    """
    with one_line_errors("undertow plan", debug=debug):
        rate = parse_bandwidth(bandwidth, "--bandwidth")
        args, misplaced = _find_save_profile(args or ())
        save_profile = save_profile or misplaced
        if sum(choice is not None for choice in (script, model, profile)) != 1:
            raise ConfigError("give a script, or --model with the name of a model, or --profile with a file")
        _check_options(script, model, batch=batch, save_profile=save_profile)
        if model is not None:
            subject = find_subject(model, batch)
        elif profile is not None:
            subject = read_subject(profile)
        else:
            subject = take_measured(str(script), _measure(str(script), args, keep=save_profile))
        cluster = Cluster(workers=hosts, bytes_per_s=rate / 8 * PAYLOAD_SHARE, **dataclasses.asdict(subject.device))
        made = make_plan(subject.profile, cluster, policy=policy, has_gates=subject.has_gates)
        if out is not None:
            made.write(out)
        if is_json:
            print(clean_json(made.to_json()))
            return 0
        open_console().print(make_plan_table(made, title=f"{subject.title}, {hosts} hosts, {format_bandwidth(rate)}"))
        return 0


def _check_options(script: str | None, model: str | None, *, batch: int | None, save_profile: Path | None) -> None:
    """Refuse impossible options before the first steps of a script are run."""
    if model is None and batch is not None:
        raise ConfigError("--batch is for models of the zoo: a script or profile has its own batch; leave --batch out")
    if save_profile is None:
        return
    if script is None:
        raise ConfigError(f"--save-profile {save_profile} saves the measurements of a script: give a script")
    check_output("--save-profile", save_profile)


def _find_save_profile(args: Sequence[str]) -> tuple[list[str], Path | None]:
    """Take --save-profile out of the script's arguments, because users also write it there."""
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
    """Run the first steps of a script, with its output on stderr."""
    if not Path(script).exists():
        raise ConfigError(f"there is no script {script}")
    # The guard ends the run and removes the folder if this process is killed.
    with closing(CleanupGuard()) as guard, tempfile.TemporaryDirectory(prefix="undertow-plan-") as folder:
        guard.remove(Path(folder).absolute())
        path = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "undertow", "run", "-n", "1", script, *args]
        environment = {**os.environ, "UNDERTOW_PROFILE": str(path)}
        code = _run(command, environment, f"running the first steps of {Path(script).name}", guard)
        if not path.exists():
            ended = "ended" if code == 0 else f"failed with code {code}"
            raise PlanError(
                f"{script} {ended} before its first steps were measured: the script must wrap a model with "
                "undertow.torch.parallelize or DistributedDataParallel, and train it for at least four steps"
            )
        measured = read_measured(path)
    if keep is not None:
        measured.write(keep)
    return measured


def _run(command: Sequence[str], environment: Mapping[str, str], title: str, guard: CleanupGuard) -> int:
    """Run a command, and print its output through Python's stderr, so that it does not garble the progress bar."""
    with (
        open_progress() as progress,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        guard.watch_launcher(process.pid)
        progress.say(title)
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


_COLUMNS: tuple[tuple[str, Justify, Callable[[Choice], str]], ...] = (
    ("tensor", "left", lambda choice: choice.tensor),
    ("shape", "left", lambda choice: " x ".join(map(str, choice.shape))),
    ("scheme", "left", lambda choice: choice.scheme.value),
    ("out", "right", lambda choice: format_bytes(choice.bytes_out)),
    ("alone, ms", "right", lambda choice: format_ms_figure(choice.alone_s)),
    ("P*", "right", lambda choice: "" if choice.break_even is None else f"{choice.break_even:.0f}"),
    ("reason", "left", lambda choice: choice.reason),
)


def make_plan_table(made: Plan, *, title: str = "") -> Table:
    """Make a table with one row for each tensor, and the totals below."""
    return fill_table(title, describe_plan(made), _COLUMNS, made.choices)


def describe_plan(made: Plan) -> str:
    sums: dict[str, list[Choice]] = {}
    for choice in made.choices:
        sums.setdefault(choice.scheme.value, []).append(choice)
    return "\n".join(
        [
            f"predicted step: {_show_step(made.step_s, made)}, {format_bytes(made.bytes_out)} out per host and step",
            *(f"{name}: {_count(choices)}" for name, choices in sums.items()),
            "each scheme alone, wherever it is possible: "
            + ", ".join(f"{name} {_show_step(step_s, made)}" for name, step_s in made.alone.items()),
            "alone, ms: time from a gradient to the mean of all, if nothing else were sent",
            "P*: with more workers than this, factors cost more bytes than the dense gradient",
        ]
    )


def _show_step(step_s: float, made: Plan) -> str:
    return f"{format_ms(step_s)} ({step_s / made.compute_s:.2f} x compute)"


def _count(choices: Sequence[Choice]) -> str:
    total_bytes = sum(choice.bytes_out for choice in choices)
    return f"{format_quantity(len(choices), 'tensor')}, {format_bytes(total_bytes)}"
