"""HTML page about the steps of a run: the summary in words, the timeline, tables, advice.

In: a study of a trace.  Out: the page as text.  It loads nothing, and its policy allows only its own script and style.
All text from outside is escaped.  The tables also have the figures of the timeline.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

import msgspec

from undertow.observe.report.document import STYLE, hash_source, list_definitions, make_document, section
from undertow.observe.report.step_figures import draw_bar, draw_legend, draw_links
from undertow.observe.report.step_tables import show_path, show_prediction, show_ranks, show_tensors, show_uses
from undertow.observe.timeline.analysis import Analysis, Study
from undertow.observe.timeline.run_trace import name_steps
from undertow.observe.timeline.step_picture import KINDS, PictureDrawer
from undertow.units import format_ns, format_quantity

_HERE = Path(__file__).parent
_WHY = {
    "median": "the median",
    "fastest": "the fastest",
    "slowest": "the slowest",
    "chosen": "as requested",
}


def make_step_page(study: Study) -> str:
    """Make the page, as text for a file in UTF-8."""
    analysis = study.analysis
    title = f"undertow: steps of {Path(analysis.script).name or 'a run'}"
    names = ("step_page.css", "step_tables.js", "step_page.js")
    style, *scripts = ((_HERE / name).read_text(encoding="utf-8") for name in names)
    script = "".join(scripts)
    body = "\n".join(filter(None, (*_make_head(analysis, title), *_make_sections(study), _embed(study))))
    body += f"\n<script>{script}</script>"
    return make_document(title, body, style=style, head=_make_policy(STYLE + style, script))


def _make_policy(style: str, script: str) -> str:
    """Allow only this script and style, by their digests, so that injected ones would not run."""
    policy = (
        f"default-src 'none'; script-src {hash_source(script)}; style-src {hash_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
    )


def _embed(study: Study) -> str:
    """Embed the data for the script; `<` is escaped, so that the data cannot end its element."""
    drawer = PictureDrawer(study.trace, study.threads)
    pictures = drawer.draw_all(study.steps.shown, study.paths)
    data = msgspec.json.encode({"kinds": KINDS, "pictures": pictures, "names": drawer.names}).decode()
    safe = data.replace("<", "\\u003c")
    return f'<script type="application/json" id="pictures">{safe}</script>'


# The top of the page


def _make_head(analysis: Analysis, title: str) -> Iterable[str]:
    tag = ' <span class="tag">simulated</span>' if analysis.is_simulated else ""
    yield f"<header><h1>{escape(title)}{tag}</h1>"
    yield f'<p class="quiet">{escape(_describe(analysis))}</p>'
    yield _make_navigation(analysis) + "</header><main>"
    first, *others = analysis.summary
    yield section("Summary", f'<p class="lead">{escape(first)}</p>{_list(others, "summary")}', name="summary")
    if analysis.missing:
        yield section("What is missing", _list(analysis.missing), name="missing")


def _describe(analysis: Analysis) -> str:
    count = len(analysis.ranks) or analysis.world_size
    workers = format_quantity(analysis.world_size, "worker")
    if count != analysis.world_size:
        workers += f", traces of {count}"
    kind = "simulated" if analysis.is_simulated else "measured"
    version = f"undertow {analysis.version}" if analysis.version else ""
    return ", ".join(filter(None, [workers, analysis.script, version, kind]))


def _make_navigation(analysis: Analysis) -> str:
    names = {"summary": "Summary", "missing": "What is missing", **_HEADINGS}
    left_out = set() if analysis.counted else set(_HEADINGS) - {"definitions"}
    left_out |= set() if analysis.missing else {"missing"}
    links = (f'<li><a href="#{name}">{words}</a></li>' for name, words in names.items() if name not in left_out)
    return f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav>'


def _list(sentences: Iterable[str], css_class: str = "") -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul{f' class={css_class}' if css_class else ''}>{items}</ul>" if items else ""


# Sections, in their order

_HEADINGS = {
    "parts-of-a-step": "Where the time goes",
    "timeline-of-a-step": "Timeline",
    "critical-path": "Critical path",
    "every-tensor": "Tensors",
    "links": "Links",
    "every-rank": "Ranks",
    "predicted": "Prediction",
    "advice": "Advice",
    "definitions": "Definitions",
}


def _make_sections(study: Study) -> Iterable[str]:
    analysis = study.analysis
    if analysis.counted:
        contents = {
            "parts-of-a-step": _show_uses(analysis),
            "timeline-of-a-step": _show_timeline(study),
            "critical-path": _show_path(analysis),
            "every-tensor": show_tensors(analysis),
            "links": _show_links(study),
            "every-rank": _show_ranks(analysis),
            "predicted": _show_prediction(analysis),
            "advice": _show_advice(analysis),
        }
        for name, content in contents.items():
            yield section(_HEADINGS[name], content, name=name)
    yield section(_HEADINGS["definitions"], list_definitions(_DEFINITIONS.items()), name="definitions") + "</main>"


def _show_uses(analysis: Analysis) -> str:
    notes = "".join(f'<p class="quiet">{escape(note)}</p>' for note in analysis.notes)
    count = len(analysis.ranks)
    counted = f"The mean of {name_steps(analysis.counted)} and of {format_quantity(count, 'rank')}."
    return f'<figure>{draw_bar(analysis)}</figure>{show_uses(analysis)}<p class="quiet">{counted}</p>{notes}'


def _show_timeline(study: Study) -> str:
    options = "".join(
        f'<option value="{index}">step {number}, {_WHY[why]}</option>'
        for index, (why, number) in enumerate(study.steps.shown.items())
    )
    error = format_ns(study.analysis.clock_error_ns)
    return _TIMELINE.format(options=options, legend=draw_legend(), error=error)


_TIMELINE = """<noscript><p>The timeline needs the page's script; the tables below have the same figures.</p></noscript>
<div class="tools">
<label class="group">Step <select id="step">{options}</select></label>
<span class="group" role="group" aria-label="Zoom"><button type="button" id="closer" aria-label="Zoom in">+</button>
<button type="button" id="wider" aria-label="Zoom out">−</button>
<button type="button" id="all">all</button></span>
<span class="group" role="group" aria-label="Move"><button type="button" id="earlier" aria-label="Earlier">←</button>
<button type="button" id="later" aria-label="Later">→</button></span>
<output id="window" aria-label="Shown"></output>
</div>
<div id="timeline" tabindex="0" role="group" aria-label="Timeline of a step on all ranks" aria-describedby="keys">
<canvas aria-hidden="true"></canvas></div>
<p id="details" aria-live="polite">Point at a mark, or choose one with the keys, to read about it.</p>
{legend}
<p class="quiet" id="keys">Drag to move, pinch or Ctrl and wheel to zoom. With the timeline in focus: <kbd>+</kbd>
<kbd>−</kbd> zoom, <kbd>0</kbd> all, <kbd>←</kbd> <kbd>→</kbd> move, <kbd>↑</kbd> <kbd>↓</kbd> choose a lane,
<kbd>n</kbd> <kbd>p</kbd> next and previous mark, which is described above. Ranks begin a step at different times:
thin lines mark the beginning and the end of each rank's step. Their clocks agree to within {error}.</p>"""


def _show_path(analysis: Analysis) -> str:
    meaning = (
        f"What step {analysis.median_step} really waited for, from beginning to end, across all ranks. Shortening "
        "anything else does not shorten the step."
    )
    return f"<p>{escape(meaning)}</p>{show_path(analysis)}"


def _show_links(study: Study) -> str:
    caption = (
        f"Step {study.analysis.median_step}: sent (solid) and received (dashed), the mean of the ranks; the bands "
        "reach from the idlest to the busiest rank. Rates above the dotted line are copies to or from the operating "
        "system's buffers, which are faster than the link."
    )
    return f'<figure><div class="box" tabindex="0">{draw_links(study)}</div><figcaption>{caption}</figcaption></figure>'


def _show_ranks(analysis: Analysis) -> str:
    sentences = [
        f"Rank {one.rank} is a straggler: it computes {format_ns(one.excess_ns)} longer per step than the others."
        for one in analysis.stragglers
    ] + [f"The link of rank {link.rank} is slower than those of the other ranks." for link in analysis.slow_links]
    found = _list(sentences) or "<p>No rank computes more than 10 % longer than the others: there is no straggler.</p>"
    return found + show_ranks(analysis)


def _show_prediction(analysis: Analysis) -> str:
    why = (
        "The prediction is based on a few early steps in which nothing overlaps, and on links measured before "
        "training; it assumes that all ranks do the same work at the same time. It does not include the optimizer, "
        "data loading, or the effect of cores shared by training and engine: where these matter, a step is longer than "
        "predicted."
    )
    return f'{show_prediction(analysis)}<p class="quiet">{why}</p>'


def _show_advice(analysis: Analysis) -> str:
    items = (f"<li><strong>{escape(one.title)}</strong>{escape(one.reason)}</li>" for one in analysis.advice)
    return f'<ul class="advice">{"".join(items)}</ul>'


_DEFINITIONS = {
    "step": "Time on each rank from the first layer of a forward pass to that of the next one; complete if all ranks "
    "have recorded it.",
    "compute": "Time of a step without waiting, handing over, applying, the optimizer and waiting for the turn. Spans "
    "nest, and the innermost counts: a wait inside a forward pass is waiting. All uses add up to exactly the step.",
    "exposed waiting": "Time that the training thread waits for the network. Traffic during compute costs nothing.",
    "waited": "A wait at the gate of a tensor counts for that tensor. Where backward waits for all tensors, the time "
    "until a result arrives counts for the tensor that arrives.",
    "queued": "Time that a slice spent in the send queue.",
    "wire": "Time from when a slice left the send queue until its last byte arrived at the receiver.",
    "bytes out": "Bytes that a worker sends for a tensor: its contributions, and the answers of its shard.",
    "link runs at": "Bytes in the busier direction, as a share of the bytes that the link, at its measured rate, could "
    "have carried in the steps.",
    "critical path": "Chain of causes, followed back from the end of the step on the rank that ended it last: compute; "
    "before it a wait, which ended when a result arrived; the shard, which sent the result when it had the last "
    "contribution; and so on.",
    "straggler": "Rank whose compute is more than 10 % longer than the median of the others.",
}
