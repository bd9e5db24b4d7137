"""The command `undertow`: reads the command line, calls one function, exits with its code.

Exit codes: 0 done, 1 failed run (or the first failing worker's own code), 2 wrong usage.
An error is one line on stderr; its traceback is shown with `--debug` only.
Must be quick to start: only the command that is asked for is imported, and none of them imports torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from undertow.cli.errors import USAGE_ERROR
from undertow.launch.speech import say

__all__ = ["COMMANDS", "main"]

_LOOKS: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": "rich"}
# Everything after the script belongs to the script; torchrun's underscore spellings are understood as well.
_BEFORE_A_SCRIPT: dict[str, Any] = {
    "allow_interspersed_args": False,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
# Where each command is, and how its arguments are read; in the order of the help.
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "run": ("undertow.cli.run:run", _BEFORE_A_SCRIPT),
    "env": ("undertow.cli.environment:show_environment", {}),
    "doctor": ("undertow.cli.doctor:doctor", {}),
    "bench": ("undertow.cli.bench:bench", {}),
    "bottleneck": ("undertow.cli.bottleneck:bottleneck", {}),
    "plan": ("undertow.cli.plan:plan", _BEFORE_A_SCRIPT),
    "report": ("undertow.cli.report:report", {}),
    "papers": ("undertow.cli.papers:papers", {}),
    "simulate": ("undertow.cli.simulate:simulate", {}),
    "faults": ("undertow.cli.faults:faults", {}),
    "lab": ("undertow.cli.lab:lab", {}),
    "share": ("undertow.cli.share:share", {}),
}


def make_app(names: Iterable[str]) -> typer.Typer:
    """The command line, with these commands only: all of them take three times as long to import as one."""
    app = typer.Typer(**_LOOKS)
    app.callback(invoke_without_command=True)(_undertow)
    for name in names:
        place, settings = COMMANDS[name]
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, context_settings=settings)(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"undertow {importlib.metadata.version('undertow')}")
        raise typer.Exit


def _undertow(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one model on many machines joined by ordinary Ethernet.

    Example: undertow run -n 4 train.py --epochs 3
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE_ERROR)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point of `undertow` and of `python -m undertow`."""
    given = sys.argv[1:] if argv is None else argv
    # Without a command, or with one that is not known, the help and the hint need all of them.
    asked = given[:1] if given[:1] and given[0] in COMMANDS else COMMANDS
    command = typer.main.get_command(make_app(asked))
    try:
        code = command.main(given, prog_name="undertow", standalone_mode=False)
    except Exception as error:
        # By shape, not by class: typer has brought its own copy of these classes since it dropped click.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        say(f"undertow: {explain()} (see: undertow --help)")
        sys.exit(USAGE_ERROR)
    sys.exit(code if isinstance(code, int) else 0)
