"""Table of everything that undertow replaces in a script's process, with reasons.

In: rows, each of which makes a replacement from the original.  Out: the replacement is in effect until it is undone.
Two other modules assign to modules or classes that are not undertow's: `torch/pending/native_functions.py` (functions
that would read a parameter before its gate opens) and `torch/data/distribution.py` (`torch.autograd.backward`, for
scripts that call `undertow.torch.distribute`).
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from undertow.errors import ConfigError
from undertow.script import replacements
from undertow.script.single_process import SingleProcessScript
from undertow.torch.data import replacements as data

CHECKED_WITH = "2.13.0"  # the version of torch with which each row is needed and works


@dataclass(frozen=True)
class Patch:
    """A replacement for `target`, module:name or module:class.name, which `make(original, script)` returns."""

    target: str
    make: Callable[[Any, SingleProcessScript], Any]
    reason: str
    checked_with: str = CHECKED_WITH

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]


def _each(
    targets: Sequence[str],
    make: Callable[[Any, SingleProcessScript], Any],
    reason: str,
    checked_with: str = CHECKED_WITH,
) -> tuple[Patch, ...]:
    """Return a patch for each target, all with the same reason."""
    return tuple(Patch(target, make, reason, checked_with) for target in targets)


# For every script.
DDP_PATCHES = _each(
    ("torch.nn.parallel:DistributedDataParallel", "torch.nn.parallel.distributed:DistributedDataParallel"),
    replacements.wrap_model,
    "scripts for torchrun train over undertow's engine; `isinstance` holds, because it is a subclass of torch's",
)
_LOOKUPS = {"exists": replacements.exists, "is_file": replacements.is_file, "is_dir": replacements.is_folder}
# For single-process scripts; undone as soon as a script turns out to know of ranks.
SINGLE_PROCESS_PATCHES = (
    *_each(
        ("torch.distributed:init_process_group", "torch.distributed.distributed_c10d:init_process_group"),
        replacements.join_others,
        "a script that joins other workers after its first optimizer is not a single-process script: undo all first",
    ),
    Patch(
        "torch.optim:Optimizer.__init__",
        replacements.make_optimizer,
        "an optimizer's parameters are trained: they are kept the same on all ranks",
    ),
    Patch(
        "torch.optim:Optimizer.add_param_group",
        replacements.add_parameters,
        "parameters that are added later are also kept the same",
    ),
    Patch(
        "torch.utils.data:DataLoader._index_sampler",
        data.choose_indices,
        "each rank takes its share, and len() of the loader follows; sampler and batch_sampler stay unchanged",
    ),
    Patch("torch.utils.data:DataLoader._get_iterator", data.iterate, "each rank takes every n-th sample of a stream"),
    Patch(
        "torch.utils.data.dataloader:_BaseDataLoaderIter._reset",
        data.begin_again,
        "with persistent workers one iterator serves all epochs: it must take a new share in each",
    ),
    Patch("torch.utils.data:DataLoader.__len__", data.count_batches, "len() over a stream is the share's length"),
    Patch(
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
        data.hand_out,
        "it shows which batch is being computed, for its weight, and when an epoch ends",
    ),
    Patch(
        "torch.autograd:backward",
        data.run_backward,
        "the terms of the loss are weighted, so that the gradients of a batch's shares add up to its gradient",
    ),
    Patch(
        "torch.autograd:grad",
        replacements.compute_gradients,
        "a script that updates its weights with them, without an optimizer, is warned that nothing is synchronised",
    ),
    Patch(
        "torch.optim.lr_scheduler:ReduceLROnPlateau.step",
        replacements.step_on_plateau,
        "it decides by a metric that may differ between ranks: rank 0's metric decides for all",
    ),
    *_each(("torch:save", "torch.serialization:save"), replacements.save, "one rank writes a checkpoint"),
    *_each(
        ("torch:load", "torch.serialization:load"),
        replacements.load,
        "a rank that did not write a checkpoint reads what it would have written",
    ),
    *_each(
        ("os:replace", "os:rename"),
        replacements.rename,
        "checkpoints are written under a temporary name first: one rank renames them",
    ),
    *_each(
        ("shutil:copyfile", "shutil:copy", "shutil:copy2"),
        replacements.copy,
        "the best checkpoint is a copy of the last: one rank makes it",
    ),
    Patch("os.path:exists", replacements.exists, "a checkpoint also exists for ranks that did not write it"),
    Patch("os.path:isfile", replacements.is_file, "a checkpoint is also a file for ranks that did not write it"),
    Patch("os.path:getsize", replacements.measure, "scripts print the size of a checkpoint, on every rank"),
    *(
        Patch(f"pathlib:Path.{name}", make, "as for os.path, which pathlib does not call here")
        for name, make in _LOOKUPS.items()
        if name in vars(pathlib.Path)  # not in every Python
    ),
    Patch("os.path:isdir", replacements.is_folder, "folders that do not exist are noted: another rank may make them"),
    Patch(
        "os:mkdir",
        replacements.make_folder,
        "another rank may have made the folder by then; os.makedirs and pathlib call this function",
    ),
    *_each(("os:remove", "os:unlink"), replacements.remove, "old checkpoints are removed by the rank that wrote them"),
)
# Also for single-process scripts: modules of libraries, patched when a script imports them.  Lightning has two names.
_LIGHTNING, _TENSORBOARD, _IGNITE = "lightning 2.6.6", "tensorboard 2.21.0", "pytorch-ignite 0.5.5"
_FABRIC = ("lightning.fabric.plugins.io.torch_io", "lightning_fabric.plugins.io.torch_io")
LIBRARY_PATCHES = (
    *_each(
        [f"{module}:_atomic_save" for module in _FABRIC],
        replacements.save_atomically,
        "a Trainer on one device saves to memory and writes the file itself: one rank writes a checkpoint",
        _LIGHTNING,
    ),
    *_each(
        [f"{module}:TorchCheckpointIO.load_checkpoint" for module in _FABRIC],
        replacements.load_checkpoint,
        "a rank that did not write a checkpoint reads what it would have written",
        _LIGHTNING,
    ),
    *_each(
        ("lightning.pytorch.core.saving:pl_load", "pytorch_lightning.core.saving:pl_load"),
        replacements.load,
        "load_from_checkpoint also reads what the rank would have written",
        _LIGHTNING,
    ),
    Patch(
        "ignite.handlers.checkpoint:DiskSaver._save_func",
        replacements.save_by_handler,
        "the handler opens a file itself and renames it: one rank writes and removes checkpoints",
        _IGNITE,
    ),
    Patch(
        "torch.utils.tensorboard.writer:EventFileWriter",
        replacements.write_events,
        "one rank writes the events of a SummaryWriter",
        _TENSORBOARD,
    ),
    Patch(
        "tensorboardX.writer:EventFileWriter",
        replacements.write_events,
        "one rank writes the events of a SummaryWriter",
        "tensorboardX 2.6.5",
    ),
)


class AppliedPatches:
    """The patches that are in effect."""

    def __init__(self) -> None:
        self._applied: list[tuple[Patch, Any, str, Any, Any]] = []  # patch, owner, name, original, replacement

    def apply(self, patches: Sequence[Patch], script: SingleProcessScript) -> None:
        """Apply these patches; raise `ConfigError` if this torch lacks the target of one."""
        for patch in patches:
            owner, name = _find(patch.target, patch.checked_with)
            original = vars(owner)[name]
            replacement = patch.make(original, script)
            self._applied.append((patch, owner, name, original, replacement))
            setattr(owner, name, replacement)

    def undo(self, patches: Sequence[Patch] | None = None) -> None:
        """Restore the originals of these patches, or of all, in reverse order.

        A target that the script has replaced since keeps the script's replacement; undertow's below it does nothing
        any more.
        """
        for patch, owner, name, original, replacement in reversed(self._applied):
            if (patches is None or patch in patches) and vars(owner)[name] is replacement:
                setattr(owner, name, original)
        self._applied = [entry for entry in self._applied if patches is not None and entry[0] not in patches]


def _find(target: str, checked_with: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    *outer, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for attribute in outer:
        owner = getattr(owner, attribute, None)
    if owner is None or name not in vars(owner):
        raise ConfigError(
            f"this torch has no {path} in {module}: undertow was checked with {checked_with}. --plain off and "
            "--ddp off (UNDERTOW_PLAIN, UNDERTOW_DDP) run a script without replacing it"
        )
    return owner, name
