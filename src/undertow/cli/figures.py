"""Numbers on the command line: an option that takes one says in which range.

In: the names of an option and its `Bounds`.  Out: an option of typer; a number outside ends the command with one line.
"""

from __future__ import annotations

from typing import Any

import typer

from undertow.bounds import Bounds
from undertow.errors import ConfigError


class Refusal(Exception):
    """A wrong number.  Not a `ValueError`, of which typer would keep nothing but the value."""

    def format_message(self) -> str:
        return str(self)


class FigureParser:
    """Parser of one option; typer calls it with the text, or with the default."""

    def __init__(self, option: str, bounds: Bounds) -> None:
        self.option = option
        self.bounds = bounds
        self.__name__ = "number"

    def __call__(self, value: Any) -> Any:
        try:
            if isinstance(value, str):
                return self.bounds.parse(self.option, value)
            return self.bounds.check(self.option, value)
        except ConfigError as error:
            raise Refusal(str(error)) from None


def figure(*names: str, bounds: Bounds, help: str, metavar: str = "") -> Any:
    """Make an option for a number."""
    kind = "<int>" if bounds.is_whole else "<float>"
    return typer.Option(*names, help=help, metavar=metavar or kind, parser=FigureParser(names[0], bounds))
