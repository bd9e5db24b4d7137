"""The frame of all HTML pages: document, fonts, colours, sections and lists of definitions.

In: HTML.  Out: a document that loads nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --quiet: #59616b; --line: #d4d9df; --band: #f4f6f8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #15181c; --quiet: #a0a8b2; --line: #383e46;
  --band: #1e2329 } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { margin: .4rem 0 }
.quiet, figcaption { color: var(--quiet); font-size: .9rem }
.box { overflow-x: auto; overscroll-behavior-x: contain }
figure { margin: 0 }
figure svg { display: block; width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; font-size: .92rem }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap }
th { vertical-align: bottom; white-space: normal }
th[title] { cursor: help; text-decoration: underline dotted var(--quiet); text-underline-offset: .25em }
.word { text-align: left }
tbody { border-top: 1px solid var(--line) }
tbody tr:hover { background: var(--band) }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .35rem 1.2rem; margin: 0 }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
code { background: var(--band); padding: .1rem .35rem; border-radius: .25rem; overflow-wrap: anywhere }
"""

_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{head}<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def make_document(title: str, body: str, *, style: str = "", head: str = "") -> str:
    """Make a document; `body` and `head` are HTML, and `style` is added to the style of all pages."""
    return _DOCUMENT.format(title=escape(title), style=STYLE + style, body=body, head=head)


def hash_source(text: str) -> str:
    """Return the source that allows this script or style, and no other, in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def section(heading: str, content: str, *, name: str = "") -> str:
    """Make a section; `content` is HTML, and `name` is the target of links to it."""
    anchor = f' id="{name}"' if name else ""
    return f"<section{anchor}>\n<h2>{heading}</h2>\n{content}\n</section>"


def list_definitions(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>\n" + "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "\n</dl>"
