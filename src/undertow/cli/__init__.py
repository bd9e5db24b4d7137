"""The command `undertow`: reads the command line, calls one function, exits with its code.

Exit codes: 0 done, 1 failed run (or the first failing worker's own code), 2 wrong usage.
An error is one line on stderr; its traceback is shown with `--debug` only.
Must stay quick to import, so it never imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
import typer.main

from undertow.cli.bench import bench
from undertow.cli.environment import show_environment
from undertow.cli.errors import USAGE_ERROR
from undertow.cli.lab import lab
from undertow.cli.plan import plan
from undertow.cli.run import run
from undertow.launch.speech import say

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
# Everything after the script belongs to the script; torchrun's underscore spellings are understood as well.
_BEFORE_A_SCRIPT = {
    "allow_interspersed_args": False,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
app.command(context_settings=_BEFORE_A_SCRIPT)(run)
app.command("env")(show_environment)
app.add_typer(lab, name="lab")
app.command("bench")(bench)
app.command("plan", context_settings=_BEFORE_A_SCRIPT)(plan)


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"undertow {importlib.metadata.version('undertow')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
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
    command = typer.main.get_command(app)
    try:
        code = command.main(argv, prog_name="undertow", standalone_mode=False)
    except Exception as error:
        # By shape, not by class: typer has brought its own copy of these classes since it dropped click.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        say(f"undertow: {explain()} (see: undertow --help)")
        sys.exit(USAGE_ERROR)
    sys.exit(code if isinstance(code, int) else 0)
