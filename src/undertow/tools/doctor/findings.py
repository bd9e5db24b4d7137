"""Findings of the doctor, one for each subject that it examined, and the verdict.

In: findings.  Out: a sentence and an exit code.
A warning or a failure always has advice; a failure means that training would fail.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from undertow.units import format_quantity


class Level(enum.Enum):
    OK = "ok"
    NOTE = "note"  # useful to know; nothing to do
    WARNING = "warning"  # training would work, but slower or not as intended
    FAILURE = "failure"  # training would fail


class Finding(msgspec.Struct, frozen=True):
    level: Level
    subject: str
    text: str
    advice: str = ""
    host: str = ""  # empty: all hosts together, or the only one


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str) -> Finding:
    return Finding(Level.NOTE, subject, text)


def warn(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.WARNING, subject, text, advice)


def fail(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.FAILURE, subject, text, advice)


def pick(findings: Iterable[Finding], *levels: Level) -> list[Finding]:
    return [finding for finding in findings if finding.level in levels]


def conclude(findings: Sequence[Finding], *, hosts: int) -> str:
    failures, warnings = pick(findings, Level.FAILURE), pick(findings, Level.WARNING)
    if failures:
        more = f" (and {format_quantity(len(failures) - 1, 'more failure')})" if len(failures) > 1 else ""
        prefix = f"{failures[0].host}: " if failures[0].host else ""
        return f"training would fail: {prefix}{failures[0].text}{more}"
    where = "this host" if hosts == 1 else f"these {hosts} hosts"
    return f"training would work on {where}; {format_quantity(len(warnings), 'warning') if warnings else 'no warnings'}"


def exit_code(findings: Iterable[Finding]) -> int:
    return 1 if pick(findings, Level.FAILURE) else 0
