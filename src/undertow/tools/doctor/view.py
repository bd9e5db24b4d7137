"""Shows the doctor's report: aligned lines, two small matrices, and at the end what is wrong, in full.

In: a `Report`.  Out: lines on a console, coloured in a terminal only.  Every text is plain: a name is never markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from undertow.observe.report.safe_text import Text
from undertow.plain_text import clean_json
from undertow.settings import Origin
from undertow.tools.doctor.cluster import list_rates
from undertow.tools.doctor.facts import Host, Setting
from undertow.tools.doctor.findings import Finding, Level, conclude, pick
from undertow.tools.doctor.pairs import Survey
from undertow.tools.doctor.rendezvous import HostCard
from undertow.tools.doctor.variables import SETTINGS
from undertow.units import GIGA, format_short

_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
_NARROWEST = 40
_LEVEL_WIDTH = max(len(level.value) for level in Level) + 1


class Report(msgspec.Struct, frozen=True):
    """Facts and findings of an examination, as this host knows them."""

    name: str
    hosts: int  # requested
    facts: Host
    findings: list[Finding]  # about this host, about the hosts together, and on the first host about the others
    cards: list[HostCard] = []  # of the hosts that took part
    survey: Survey | None = None
    see: str = ""  # the host that shows the rest; empty: this one does

    @property
    def verdict(self) -> str:
        return conclude(self.findings, hosts=self.hosts)


def show(report: Report, console: Console, *, every_setting: bool = False) -> None:
    wide = max((len(finding.subject) for finding in report.findings), default=0)
    indent = _LEVEL_WIDTH + wide + 3
    if not report.see:
        _show_good(report, console, every_setting=every_setting, wide=wide)
    for level in (Level.WARNING, Level.FAILURE):
        for finding in pick(report.findings, level):
            _print(console, *_lines(finding, wide), indent=indent)
    if report.see:
        console.print(Text(f"{report.see} shows the rest"), soft_wrap=True)
    style = _STYLES[Level.FAILURE if pick(report.findings, Level.FAILURE) else Level.OK]
    console.print(Text(report.verdict, style), soft_wrap=True)


def _show_good(report: Report, console: Console, *, every_setting: bool, wide: int) -> None:
    indent = _LEVEL_WIDTH + wide + 3
    settings = [
        _describe_setting(one, indent)
        for one in report.facts.variables.settings
        if every_setting or one.origin != Origin.DEFAULT.value
    ]
    for finding in pick(report.findings, Level.OK, Level.NOTE):
        _print(console, *_lines(finding, wide), indent=indent)
        if finding.subject == SETTINGS:
            _print(console, *settings, indent=indent)
            settings = []
    _print(console, *settings, indent=indent)  # not printed above, because there is no good finding about settings
    if report.survey and report.survey.measured:
        for table in _tables(report.cards, report.survey):
            console.print(table)


def _describe_setting(setting: Setting, indent: int) -> Text:
    origin = f"from the {setting.origin}" if setting.origin != Origin.DEFAULT.value else "the default"
    return Text(f"{'':{indent}}{setting.variable} = {setting.value or '(empty)'}, {origin}")


def _lines(finding: Finding, wide: int) -> Iterator[Text]:
    level, host = finding.level, f"{finding.host}: " if finding.host else ""
    head = f" {finding.subject:{wide}}  "
    yield Text.assemble((f"{level.value:{_LEVEL_WIDTH}}", _STYLES[level]), head, f"{host}{finding.text}")
    if finding.advice:
        yield Text(f"{'':{_LEVEL_WIDTH}}{'':{len(head)}}-> {finding.advice}")


def _print(console: Console, *lines: Text, indent: int) -> None:
    """Print lines; in a terminal a long one is folded and indented, elsewhere it stays one line."""
    for line in lines:
        is_folded = console.is_terminal and console.width - indent >= _NARROWEST
        console.print(_fold(line, indent, console.width) if is_folded else line, soft_wrap=True)


def _fold(line: Text, indent: int, width: int) -> Text:
    wrapped = textwrap.wrap(line.plain[indent:], width - indent) or [""]
    return Text.assemble(line[:indent], ("\n" + " " * indent).join(wrapped))


def _tables(cards: Sequence[HostCard], survey: Survey) -> Iterator[Table]:
    rates = list_rates(survey.measured)
    medians = {frozenset((one.dialer, one.listener)): one.median_s for one in survey.measured}

    def latency(row: int, column: int) -> str:
        time_s = medians.get(frozenset((row, column)), 0.0)
        return f"{1e3 * time_s:.3f}" if time_s else "?"

    def bandwidth(row: int, column: int) -> str:
        rate = rates.get((row, column), 0.0)
        return format_short(8 * rate / GIGA) if rate else "?"

    yield _matrix("round trip, ms", cards, latency)
    yield _matrix("from / to, Gbit/s", cards, bandwidth)


def _matrix(title: str, cards: Sequence[HostCard], cell: Callable[[int, int], str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(Text(title))
    for card in cards:
        table.add_column(Text(card.name), justify="right", no_wrap=True)
    for row, card in enumerate(cards):
        cells = ["-" if row == column else cell(row, column) for column in range(len(cards))]
        table.add_row(Text(card.name), *map(Text, cells))
    return table


def to_json(report: Report) -> str:
    """Return the report and the verdict as JSON, for scripts."""
    known = {"verdict": report.verdict, "report": report}
    return clean_json(msgspec.json.format(msgspec.json.encode(known), indent=2))
