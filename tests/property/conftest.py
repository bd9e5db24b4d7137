"""The same examples in every run, and no time limit, because a slow machine is not a failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("undertow", derandomize=True, deadline=None, database=None, max_examples=150)
settings.load_profile("undertow")
