"""Checks of the arguments of `DistributedDataParallel`.

In: a module and options.  Out: nothing, or an error that says what to do.
"""

from __future__ import annotations

from typing import Any

import torch

from undertow.errors import ConfigError

# Accepted without effect: they tune torch's buckets, or declare parameters without a gradient, which undertow detects.
_WITHOUT_EFFECT = frozenset(
    {
        "bucket_cap_mb",
        "bucket_cap_mb_list",
        "batched_grad_copy",
        "find_unused_parameters",
        "check_reduction",
        "gradient_as_bucket_view",
        "static_graph",
        "skip_all_reduce_unused_params",
    }
)
_IMPOSSIBLE = {
    "mixed_precision": "compute under torch.autocast, or cast the module with .bfloat16() before wrapping it",
    "delay_all_reduce_named_params": "all gradients are sent as soon as they exist",
    "param_to_hook_all_reduce": "all gradients are sent as soon as they exist",
    "device_mesh": "give process_group=device_mesh.get_group(NAME), with the name of its data-parallel dimension",
}


class NothingToTrain(ConfigError, RuntimeError):
    """A module without trainable parameters.  Also a RuntimeError, which torch raises."""


class Uninitialized(ConfigError, RuntimeError):
    """A module with a parameter that has no shape yet.  Also a RuntimeError, which torch raises."""


def unsupported(reason: str) -> ConfigError:
    """Return the error for a feature of torch's wrapper that undertow's lacks."""
    return ConfigError(
        f"{reason}. To keep torch's own DistributedDataParallel in a script, use --ddp off (UNDERTOW_DDP=off)"
    )


def check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _IMPOSSIBLE and value is not None:
            raise unsupported(f"{name} is not supported by undertow: {_IMPOSSIBLE[name]}")
        if name not in _IMPOSSIBLE and name not in _WITHOUT_EFFECT:
            raise TypeError(f"DistributedDataParallel has no argument {name!r}")


def check_trainable(module: torch.nn.Module, ignored: set[str]) -> None:
    named = [(name, parameter) for name, parameter in module.named_parameters() if name not in ignored]
    if not any(parameter.requires_grad for _, parameter in named):
        state = "they are all frozen" if named else "it has no parameters"
        raise NothingToTrain(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient. "
            f"{type(module).__name__}: {state}. Use the module itself, or unfreeze a parameter before wrapping it"
        )


def check_steps(module: torch.nn.Module, ignored: set[str]) -> None:
    for name, parameter in module.named_parameters():
        if name not in ignored and hasattr(parameter, "_in_backward_optimizers"):
            raise unsupported(
                f"parameter {name!r} is stepped during backward (_apply_optimizer_in_backward), before its gradient is "
                "averaged: use an ordinary optimizer"
            )


def check_module(module: torch.nn.Module, device_ids: Any, output_device: Any) -> None:
    if any(isinstance(child, torch.jit.ScriptModule) for child in module.modules()):
        raise unsupported(
            "a module that was scripted with torch.jit cannot be wrapped: wrap the module it was made from"
        )
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise Uninitialized(
                f"uninitialized parameter {name!r}: run a forward pass of the module before wrapping it"
            )
    is_on_host = all(parameter.device.type == "cpu" for parameter in module.parameters())
    if len(device_ids or ()) > 1 or (is_on_host and (device_ids or output_device is not None)):
        raise ConfigError(
            f"device_ids {device_ids} and output_device {output_device}: give the one device that the module is on, "
            "or leave both out"
        )
