"""The command `undertow`: parses the command line, calls one function, and exits with the code that it returns.

Exit codes: 0 done, 1 failed run (or the first failing worker's own code), 2 wrong usage.
An error is one line on stderr; its traceback is shown only with `--debug`.
Must start quickly: only the requested command is imported, and no command imports torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from undertow.cli.errors import USAGE_ERROR, show_help
from undertow.launch.launcher_output import print_lines

__all__ = ["COMMANDS", "main"]

_TYPER_OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}
# Everything after the script belongs to the script.  Options may be spelled with underscores, as for torchrun.
_BEFORE_A_SCRIPT: dict[str, Any] = {
    "allow_interspersed_args": False,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
# The function of each command, and how its arguments are parsed, in the order of the help.
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "run": ("undertow.cli.run:run", _BEFORE_A_SCRIPT),
    "env": ("undertow.cli.environment:show_environment", {}),
    "doctor": ("undertow.cli.doctor:doctor", {}),
    "bench": ("undertow.cli.bench:bench", {}),
    "bottleneck": ("undertow.cli.bottleneck:bottleneck", {}),
    "plan": ("undertow.cli.plan:plan", _BEFORE_A_SCRIPT),
    "report": ("undertow.cli.report:report", {}),
    "papers": ("undertow.cli.simulate:papers", {}),
    "simulate": ("undertow.cli.simulate:simulate", {}),
    "faults": ("undertow.cli.faults:faults", {}),
    "lab": ("undertow.cli.lab:lab", {}),
    "share": ("undertow.cli.share:share", {}),
}


def make_app(names: Iterable[str]) -> typer.Typer:
    """Make a command line with only these commands: importing all takes three times as long as importing one."""
    app = typer.Typer(**_TYPER_OPTIONS)
    app.callback(invoke_without_command=True)(_undertow)
    for name in names:
        function, settings = COMMANDS[name]
        module, _, attribute = function.partition(":")
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
    show_help(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `undertow`, or `python -m undertow`, and exit."""
    given = sys.argv[1:] if argv is None else argv
    # Without a command, or with an unknown one, the help or the hint needs all commands.
    names = given[:1] if given[:1] and given[0] in COMMANDS else COMMANDS
    command = typer.main.get_command(make_app(names))
    try:
        code = command.main(given, prog_name="undertow", standalone_mode=False)
    except Exception as error:
        # Recognised by the method, not by the class, because typer may include its own copy of click's classes.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        print_lines(f"undertow: {explain()} (see: undertow --help)")
        sys.exit(USAGE_ERROR)
    sys.exit(code if isinstance(code, int) else 0)
