"""The live page: one HTML document that loads nothing from elsewhere.

In: its three parts, the files beside this one.  Out: the page, and the policy that lets a browser run these and nothing
else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import NamedTuple


class Page(NamedTuple):
    html: bytes
    policy: str  # for the header Content-Security-Policy


@functools.cache
def read_page() -> Page:
    style, script = _read("page.css"), _read("page.js")
    html = _read("page.html").replace("/*style*/", style, 1).replace("/*script*/", script, 1)
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "img-src": "data:",  # the empty icon
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return Page(html.encode(), "; ".join(f"{name} {value}" for name, value in policy.items()))


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
