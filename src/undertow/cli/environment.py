"""`undertow env`: the table of all settings and their variables."""

from __future__ import annotations

from undertow.settings import table


def show_environment() -> None:
    """Show every environment variable that undertow reads, with its default.

    Example: UNDERTOW_START_TIMEOUT=30 undertow run -n 4 train.py
    """
    rows = [("variable", "default", "meaning"), *table()]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for variable, default, meaning in rows:
        print(f"{variable:<{wide[0]}}  {default or '-':<{wide[1]}}  {meaning}")
