"""Magic number and version, which begin every frame and every handshake.

Separate from `frames`, so that the launcher can perform the handshake without importing numpy.
"""

from __future__ import annotations

MAGIC = b"UTOW"
VERSION = 3
