"""What is compared: each system wraps the same model in its own way."""

from __future__ import annotations

from undertow.lab.systems.registry import find_system, list_systems
from undertow.lab.systems.system import System

__all__ = ["System", "find_system", "list_systems"]
