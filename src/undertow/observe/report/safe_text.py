"""Text for the terminal, which may contain names and messages from hosts, jobs, models or files.

All printed tables and lines are made of this `Text`, so that no file and no peer can control the terminal.
"""

from __future__ import annotations

from typing import Any, cast

import rich.text

from undertow.plain_text import clean_lines


class Text(rich.text.Text):
    """A rich text whose control characters were removed."""

    def __init__(self, text: str = "", style: Any = "", **options: Any) -> None:
        super().__init__(clean_lines(text), style, **options)

    def append(self, text: Any, style: Any = None) -> Text:
        super().append(clean_lines(text) if isinstance(text, str) else text, style)
        return self

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> Text:
        return cast(Text, super().assemble(*parts, **options))
