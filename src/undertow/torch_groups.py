"""Rendezvous through torch: its process group, or the store that torchrun starts.

Never imports torch to find out whether there is a process group: a script that does not use torch must not load it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from undertow.hidden import read_environment

if TYPE_CHECKING:
    from undertow.engine.client.group import ConnectedGroup
    from undertow.engine.wire.loop import Loop
    from undertow.settings import Settings


def has_process_group() -> bool:
    """Return whether `torch.distributed` is initialised."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def has_group_of_one() -> bool:
    """Return whether `torch.distributed` consists of this process alone."""
    return has_process_group() and sys.modules["torch.distributed"].get_world_size() == 1


class TorchRendezvous:
    """Rendezvous through the store of the script's process group, or through that of torchrun."""

    @property
    def has_joined(self) -> bool:
        return has_process_group()

    @property
    def is_available(self) -> bool:
        return has_process_group() or read_environment().get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def form(self, name: str, settings: Settings, loop: Loop) -> ConnectedGroup:
        from undertow.torch.ranks.process_groups import form_world

        return form_world(name, settings, loop)
