"""Text for the terminal that may hold words of others: names of hosts, jobs, models and tensors, and their messages.

Every table and line that is printed is made of this `Text`, so that no file and no peer writes to the terminal itself.
"""

from __future__ import annotations

from typing import Any, cast

import rich.text

from undertow.plain_text import clean_lines


class Text(rich.text.Text):
    """rich's, of text that was made safe."""

    def __init__(self, text: str = "", style: Any = "", **options: Any) -> None:
        super().__init__(clean_lines(text), style, **options)

    def append(self, text: Any, style: Any = None) -> Text:
        super().append(clean_lines(text) if isinstance(text, str) else text, style)
        return self

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> Text:
        return cast(Text, super().assemble(*parts, **options))
