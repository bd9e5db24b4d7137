"""Which group a torch object belongs to: that of `undertow.init()`, or a process group's own."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from undertow.errors import ConfigError
from undertow.runtime import process
from undertow.runtime.group import Group
from undertow.settings import read_settings
from undertow.torch import c10d
from undertow.trace.recorder import here

log = logging.getLogger("undertow")


def group_for(process_group: Any = None) -> Group:
    """The group over these ranks; formed through the process group's store if need be."""
    if process.is_formed_for_script() and dist.is_available() and dist.is_initialized():
        process.give_way("init_process_group")
    if process_group is None and process.is_initialized():
        return process.default_group()
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "no workers are joined yet: call undertow.init(), or torch.distributed.init_process_group(), first"
        )
    chosen = process_group if process_group is not None else dist.group.WORLD
    if dist.get_rank(chosen) < 0:
        raise ConfigError("this rank is not part of the process group that was given")
    return process.add_group(chosen, lambda: _form(chosen))


def _form(process_group: Any) -> Group:
    settings = read_settings(rank=0, world_size=1)  # both are the process group's own, whatever the environment says

    def form() -> Group:
        return c10d.form_process_group(process_group, process.loop(), settings)

    if dist.get_world_size(process_group) < dist.get_world_size():
        if (settings.trace or settings.live) and not here.is_on:
            log.warning("a model that only some of the workers train is neither traced nor shown live")
        return form()
    return process.form_recorded(settings, form, size=dist.get_world_size())
