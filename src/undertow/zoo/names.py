"""What to say when a name is not known: the known ones, and the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from undertow.errors import ConfigError


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    import difflib  # only when somebody mistypes

    names = tuple(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ConfigError(f"unknown {what} {name!r}; {hint}known: {', '.join(names)}")
