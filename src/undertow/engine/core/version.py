"""What all that undertow says on a wire begins with.

Apart from `frames`, so that the launcher can shake hands without numpy.
"""

from __future__ import annotations

MAGIC = b"UTOW"
VERSION = 3
