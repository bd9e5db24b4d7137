"""One HTML page about the steps of a run: the summary in words, the timeline, tables, advice.

In: a study of a trace.  Out: the page as text, complete in itself: it loads nothing, and its policy lets only its own
script and style run.  Every word that comes from outside is escaped.  What the timeline draws is in a table as well.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path

import msgspec

from undertow.report.document import STYLE, list_definitions, make_document, section
from undertow.report.step_figures import draw_bar, draw_legend, draw_links
from undertow.report.step_tables import show_parts, show_path, show_prediction, show_ranks, show_tensors
from undertow.timeline.analysis import Analysis, Study
from undertow.timeline.picture import KINDS, Album
from undertow.timeline.words import name_steps, show_ms

_HERE = Path(__file__).parent
_WHY = {
    "median": "the median",
    "fastest": "the fastest",
    "slowest": "the slowest",
    "chosen": "as asked for",
}


def make_step_page(study: Study) -> str:
    """The page, ready to be written to a file in UTF-8."""
    analysis = study.analysis
    title = f"undertow: steps of {Path(analysis.script).name or 'a run'}"
    names = ("step_page.css", "step_tables.js", "step_page.js")
    style, *scripts = ((_HERE / name).read_text(encoding="utf-8") for name in names)
    script = "".join(scripts)
    body = "\n".join(filter(None, (*_make_head(analysis, title), *_make_sections(study), _embed(study))))
    body += f"\n<script>{script}</script>"
    return make_document(title, body, style=style, head=_make_policy(STYLE + style, script))


def _make_policy(style: str, script: str) -> str:
    """Only what is in this file: by its digest, so that nothing that slipped into the page could run."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests[0]}'; style-src 'sha256-{digests[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
    )


def _embed(study: Study) -> str:
    """What the script draws.  A `<` inside of it cannot end it."""
    album = Album(study.trace, study.days)
    pictures = album.draw_all(study.steps.shown, study.paths)
    data = msgspec.json.encode({"kinds": KINDS, "pictures": pictures, "names": album.names}).decode()
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
    workers = f"{analysis.world_size} worker{'' if analysis.world_size == 1 else 's'}"
    if count != analysis.world_size:
        workers += f", traces of {count}"
    kind = "simulated" if analysis.is_simulated else "measured"
    parts = [workers, analysis.script, f"undertow {analysis.version}" if analysis.version else "", kind]
    return ", ".join(filter(None, parts))


def _make_navigation(analysis: Analysis) -> str:
    names = {"summary": "Summary", "missing": "What is missing", **_HEADINGS}
    left_out = set() if analysis.counted else set(_HEADINGS) - {"definitions"}
    left_out |= set() if analysis.missing else {"missing"}
    links = (f'<li><a href="#{name}">{words}</a></li>' for name, words in names.items() if name not in left_out)
    return f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav>'


def _list(sentences: Iterable[str], look: str = "") -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul{f' class={look}' if look else ''}>{items}</ul>" if items else ""


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
            "parts-of-a-step": _show_parts(analysis),
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
    yield section(_HEADINGS["definitions"], list_definitions(_DEFINITIONS), name="definitions") + "</main>"


def _show_parts(analysis: Analysis) -> str:
    notes = "".join(f'<p class="quiet">{escape(note)}</p>' for note in analysis.notes)
    count = len(analysis.ranks)
    counted = f"The mean of {name_steps(analysis.counted)} and of {count} rank{'' if count == 1 else 's'}."
    return f'<figure>{draw_bar(analysis)}</figure>{show_parts(analysis)}<p class="quiet">{counted}</p>{notes}'


def _show_timeline(study: Study) -> str:
    options = "".join(
        f'<option value="{place}">step {number}, {_WHY[why]}</option>'
        for place, (why, number) in enumerate(study.steps.shown.items())
    )
    error = show_ms(study.analysis.clock_error_ns)
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
<p id="details" aria-live="polite">Point at a mark, or choose one with the keys, to read what it is.</p>
{legend}
<p class="quiet" id="keys">Drag to move, pinch or Ctrl and wheel to zoom. With the timeline in focus: <kbd>+</kbd>
<kbd>−</kbd> zoom, <kbd>0</kbd> all, <kbd>←</kbd> <kbd>→</kbd> move, <kbd>↑</kbd> <kbd>↓</kbd> choose a lane,
<kbd>n</kbd> <kbd>p</kbd> next and previous mark, which is described above. Ranks begin a step at different times: a
thin line stands at the begin and at the end of each one's. Their clocks agree to within {error}.</p>"""


def _show_path(analysis: Analysis) -> str:
    told = (
        f"What step {analysis.median_step} really waited for, from its begin to its end, across all ranks: shorten "
        "anything else, and the step stays as long as it is."
    )
    return f"<p>{escape(told)}</p>{show_path(analysis)}"


def _show_links(study: Study) -> str:
    caption = (
        f"Step {study.analysis.median_step}: sent (solid) and received (dashed), the mean of the ranks; the bands "
        "reach from the idlest to the busiest rank. What is above the dotted line went to or from the operating "
        "system's buffers, which are faster than the link."
    )
    return f'<figure><div class="box" tabindex="0">{draw_links(study)}</div><figcaption>{caption}</figcaption></figure>'


def _show_ranks(analysis: Analysis) -> str:
    sentences = [
        f"Rank {one.rank} is a straggler: it computes {show_ms(one.excess_ns)} longer per step than the others."
        for one in analysis.stragglers
    ] + [f"The link of rank {link.rank} is slower than those of the others." for link in analysis.slow_links]
    told = _list(sentences) or "<p>No rank computes more than 10 % longer than the others: there is no straggler.</p>"
    return told + show_ranks(analysis)


def _show_prediction(analysis: Analysis) -> str:
    why = (
        "The plan is made of a few early steps in which nothing overlaps, of links measured before the training, and "
        "of a step in which all ranks do the same at the same time. It knows nothing of the optimizer, of data "
        "loading, and of cores that training and engine share; where these take long, a step is longer than predicted."
    )
    return f'{show_prediction(analysis)}<p class="quiet">{why}</p>'


def _show_advice(analysis: Analysis) -> str:
    items = (f"<li><strong>{escape(one.title)}</strong>{escape(one.reason)}</li>" for one in analysis.advice)
    return f'<ul class="advice">{"".join(items)}</ul>'


_DEFINITIONS = (
    (
        "step",
        "From the first layer of a forward pass to that of the next one, on each rank; complete if all ranks have it.",
    ),
    (
        "compute",
        "What is left of a step when waiting, handing over, applying, the optimizer and the turn are taken away. Spans "
        "nest, and the innermost counts: a wait inside of a forward is waiting. The parts add up to the step exactly.",
    ),
    ("exposed waiting", "The training thread stands still for the network. What travels beside compute costs nothing."),
    (
        "waited",
        "At the gate of a tensor: that tensor's. Where backward waits for all of them, what passes until a result "
        "arrives belongs to what arrives.",
    ),
    ("queued", "From when a slice came to the outbox until it left it."),
    ("wire", "From when a slice left the outbox until its last byte was at the receiver."),
    ("bytes out", "What a worker sends for a tensor: its contributions, and what its shard answers."),
    (
        "link runs at",
        "Bytes of the busier direction, over what the link carries in the time of the steps, as measured.",
    ),
    (
        "critical path",
        "Backwards from the end of the step on the rank that ended it last: compute, until a wait ended; that ended "
        "because a result came over the wire, which a shard sent when it had the last contribution, and so on.",
    ),
    ("straggler", "A rank whose compute is more than 10 % longer than that of the others (their median)."),
)
