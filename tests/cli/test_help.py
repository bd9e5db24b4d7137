"""The command line: help, fast start, and usage errors in one line."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.main

from tests.support.command import Cli, find_imports
from undertow.cli import COMMANDS, make_app
from undertow.settings import table


def test_help_names_the_commands_and_an_example(cli: Cli) -> None:
    result = cli.run("--help")
    assert result.returncode == 0
    assert "undertow run -n 4 train.py" in result.stdout
    assert {"run", "env", "lab", "bench", "bottleneck", "plan"} <= set(COMMANDS)
    for command in COMMANDS:
        assert f" {command} " in result.stdout


def test_help_of_run_has_every_option_and_an_example(cli: Cli) -> None:
    result = cli.run("run", "--help")
    assert result.returncode == 0
    assert "undertow run -n 4 train.py --epochs 3" in result.stdout
    for option in ("-n", "--nproc-per-node", "-m", "--module", "--nnodes", "--node-rank", "--master-addr"):
        assert option in result.stdout
    for option in ("--master-port", "--start-timeout", "--quiet-ranks", "--debug"):
        assert option in result.stdout


VERBS = """
Calculate Check Choose Compare Divide Emulate Examine Find Give Import Inject Keep Let Limit List Measure Meet Name Open
Overlap Pass Plan Predict Print Read Record Replace Run Save Say Seed Send Serve Set Share Show Simulate Skip Slow Start
Stop Take Train Treat Use Vary Wait Write
"""


def list_help(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield every command, option and argument with its help."""
    yield name, command.help
    for parameter in command.params:
        if parameter.name != "help":
            yield f"{name} {parameter.name}", parameter.help
    for sub in getattr(command, "commands", {}).values():
        yield from list_help(sub, f"{name} {sub.name}")


def test_every_help_text_begins_with_a_verb() -> None:
    command = typer.main.get_command(make_app(COMMANDS))
    texts = dict(list_help(command, "undertow"))
    assert len(texts) > 130
    assert {name: text for name, text in texts.items() if text.split()[0] not in VERBS.split()} == {}


def test_version_is_the_packages(cli: Cli) -> None:
    result = cli.run("--version")
    assert (result.returncode, result.stdout) == (0, f"undertow {importlib.metadata.version('undertow')}\n")


def test_env_lists_every_setting_with_its_default(cli: Cli) -> None:
    result = cli.run("env")
    assert result.returncode == 0
    lines = result.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [variable for variable, _, _ in table()]
    for line, (_, default, meaning) in zip(lines, table(), strict=True):
        assert line.split()[1] == (default or "-")
        assert line.endswith(meaning)


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    result = cli.run()
    assert result.returncode == 2
    assert "Usage: undertow" in result.stdout


def test_no_command_imports_torch() -> None:
    imported = find_imports("from undertow.cli import COMMANDS, make_app; make_app(COMMANDS)")
    assert {"undertow.cli.run", "undertow.cli.lab", "undertow.cli.bench", "undertow.cli.plan"} <= set(imported)
    assert "torch" not in imported


def test_a_command_imports_no_other_and_run_not_even_numpy() -> None:
    imported = find_imports("from undertow.cli import make_app; make_app(['run'])")
    assert "undertow.cli.run" in imported
    assert not {"undertow.cli.lab", "undertow.cli.bench", "undertow.tools.zoo", "numpy"} & set(imported)


def test_main_loads_what_is_asked_for() -> None:
    ask = "import contextlib, undertow.cli; sys.argv[1:] = ['env']"
    imported = find_imports(f"{ask}\nwith contextlib.suppress(SystemExit): undertow.cli.main()\npass")
    assert "undertow.cli.environment" in imported
    assert "undertow.cli.run" not in imported


def test_a_mistyped_command_is_corrected(cli: Cli) -> None:
    result = cli.run("bottelneck")
    assert (result.returncode, result.stdout) == (2, "")
    assert "No such command 'bottelneck'. Did you mean 'bottleneck'?" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["walk"], "No such command 'walk'"),
        (["run"], "Missing argument 'SCRIPT'"),
        (["run", "--fast", "script.py"], "--fast"),
        (["run", "-n", "many", "script.py"], "-n"),
        (["run", "-n", "0", __file__], "-n 0 is not possible"),
        (["run", "nowhere.py"], "script 'nowhere.py' does not exist"),
        (["run", "/"], "script '/' is a folder"),
        (["run", "--nnodes", "2", "--node-rank", "2", __file__], "--node-rank 2 is outside of 0 to 1"),
        (["run", "--start-timeout", "0", __file__], "--start-timeout 0"),
        (["run", "--master-addr", "192.0.2.1", __file__], "192.0.2.1 is not an address of this host"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: list[str], words: str) -> None:
    result = cli.run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_bad_variable_is_wrong_usage_too(cli: Cli) -> None:
    cli.environment["UNDERTOW_START_TIMEOUT"] = "soon"
    result = cli.run("run", __file__)
    assert result.returncode == 2
    assert (
        result.stderr == "undertow run: UNDERTOW_START_TIMEOUT='soon' is not a number: give 0.001 to 1000000 seconds\n"
    )


def test_debug_shows_the_traceback(cli: Cli) -> None:
    result = cli.run("run", "--debug", "nowhere.py")
    assert result.returncode != 0
    assert "Traceback" in result.stderr
    assert "ConfigError: script 'nowhere.py' does not exist" in result.stderr
