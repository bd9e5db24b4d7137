"""Figures published in papers, beside simulations of the same clusters.

In: published figures.  Out: the same figures simulated, side by side.
Poseidon is Zhang et al., ATC 2017; P3 is Jayarajan et al., MLSys 2019.
No paper says how fast a system is on a link that is faster than its software.  Here each system has one such rate,
fitted to its own column (`EFFECTIVE_GBIT`) and never above the link's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from undertow.progress import SILENT, Progress
from undertow.tools.sim.schedules import find_schedule
from undertow.tools.sim.subject import find_subject
from undertow.tools.sim.sweep import Setting, run, weigh
from undertow.tools.sim.topology import make_topology
from undertow.units import GIGA, format_bandwidth, format_change, format_figure, format_percent

TOLERANCE = 0.10
# Most Gbit/s that a system moves each way on any link: fitted.
EFFECTIVE_GBIT = {"hybrid": 8.0, "wfbp": 16.0, "ps-whole": 44.0, "fifo": 7.0, "p3": 100.0}

HOSTS = (1, 2, 4, 8, 16, 32)
# Seconds for 20 iterations of VGG19-22K, 32 images per machine, Caffe, one Titan X, 40 GbE; 18.5 without any library.
ITERATIONS = 20
ALONE_S = 18.5
CURVE = {
    "hybrid": (18.7, 18.9, 19.3, 19.4, 19.7, 20.1),
    "wfbp": (19.4, 20.8, 22.58, 24.2, 25.6, 27.7),
    "ps-whole": (34.5, 36.8, 50.3, 68.5, 105.0, 134.0),
}
_TITLES = {"hybrid": "Poseidon", "wfbp": "WFBP only", "ps-whole": "plain PS"}
_SPEEDUPS = (("vgg19-22k", 16, 10, 15.5), ("inception-v3", 32, 40, 31.5))
_P3 = (("resnet50", 4, "p3", 25), ("sockeye", 4, "p3", 38), ("vgg19", 15, "p3", 66), ("vgg19", 30, "slicing", 49))
P3_HOSTS = 4
_SETTING = Setting(steps=1)


@dataclass(frozen=True)
class Figure:
    """Published figure beside the simulated one."""

    name: str
    published: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.published - 1

    @property
    def is_close(self) -> bool:
        return abs(self.error) <= TOLERANCE


@dataclass(frozen=True)
class Section:
    """Figures of one table of a paper."""

    title: str
    unit: str
    figures: list[Figure]

    def to_markdown(self) -> str:
        lines = [f"### {self.title}", "", f"| | published, {self.unit} | simulated | error |", "|---|---|---|---|"]
        for figure in self.figures:
            mark = "" if figure.is_close else " (!)"
            error = format_change(figure.error) + mark
            lines.append(f"| {figure.name} | {figure.published:g} | {format_figure(figure.simulated)} | {error} |")
        return "\n".join(lines) + "\n"


def make_sections(progress: Progress = SILENT) -> Iterator[Section]:
    runs = [*HOSTS * len(CURVE), *(hosts for _, hosts, _, _ in _SPEEDUPS), *[P3_HOSTS] * 2 * len(_P3)]
    progress.expect(sum(weigh(make_topology(hosts, 1e9), _SETTING) for hosts in runs))
    for system in CURVE:
        yield _simulate_curve(system, progress)
    yield _simulate_speedups(progress)
    yield _simulate_p3(progress)


def _simulate_curve(system: str, progress: Progress) -> Section:
    """Simulate one curve, plus the library's own cost on one machine, which involves no network, from its column."""
    own_s = CURVE[system][0] - ALONE_S
    figures = []
    for hosts, published in zip(HOSTS, CURVE[system], strict=True):
        progress.say(f"VGG19-22K, {hosts} machines: {system}")
        seconds = ITERATIONS * _find_iteration_s("vgg19-22k", hosts, 40, system, progress) + own_s
        figures.append(Figure(f"{hosts} machine{'s' * (hosts > 1)}", published, seconds))
    effective = f"{format_bandwidth(GIGA * min(40.0, EFFECTIVE_GBIT[system]))} effective"
    return Section(f"{_TITLES[system]}, VGG19-22K at 40 GbE, {effective}", "s for 20 iterations", figures)


def _simulate_speedups(progress: Progress) -> Section:
    figures = []
    for model, hosts, gbit, published in _SPEEDUPS:
        progress.say(f"{model}, {hosts} machines: hybrid")
        iteration_s = _find_iteration_s(model, hosts, gbit, "hybrid", progress)
        speedup = hosts * find_subject(model).profile.compute_s / iteration_s
        figures.append(Figure(f"{model}, {hosts} machines, {gbit} GbE", published, speedup))
    return Section("Poseidon, times one machine", "x", figures)


def _simulate_p3(progress: Progress) -> Section:
    """Simulate P3's gains as factors, so that the tolerance applies to the whole factor."""
    figures = []
    for model, gbit, system, percent in _P3:
        progress.say(f"{model}, {P3_HOSTS} machines: {system} and fifo")
        before_s, after_s = (_find_iteration_s(model, P3_HOSTS, gbit, name, progress) for name in ("fifo", system))
        what = "slicing alone" if system == "slicing" else "P3"
        figures.append(
            Figure(f"{model}, {format_bandwidth(GIGA * gbit)}, {what}", 1 + percent / 100, before_s / after_s)
        )
    effective = format_bandwidth(GIGA * EFFECTIVE_GBIT["fifo"])
    title = f"P3 over its own baseline, {P3_HOSTS} machines, {effective} effective of the baseline"
    return Section(title, "times as fast", figures)


def _find_iteration_s(model: str, hosts: int, gbit: float, system: str, progress: Progress) -> float:
    effective = min(gbit, EFFECTIVE_GBIT.get(system, gbit))
    topology = make_topology(hosts, effective * 1e9)
    return run(find_subject(model), topology, find_schedule(system), _SETTING, progress).iteration_s


def describe(sections: Sequence[Section]) -> str:
    figures = [figure for section in sections for figure in section.figures]
    far = sum(not figure.is_close for figure in figures)
    return f"{len(figures)} published figures, {len(figures) - far} of them within {format_percent(TOLERANCE)}"
