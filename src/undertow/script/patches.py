"""What undertow replaces in a script's process because the script may not know of it: one table, with reasons.

In: what a row makes of the original.  Out: it stands in the original's place, until it is undone.
Two other places in the package assign to a module or class of somebody else's: `torch/native.py`, functions that would
read a parameter past its gate, and `torch/data/distribution.py`, `torch.autograd.backward` where a script asks for its
share of the data by `undertow.torch.distribute`.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from undertow.errors import ConfigError
from undertow.script import standins
from undertow.script.plain import Plain
from undertow.torch.data import standins as data

CHECKED_WITH = "2.13.0"  # of torch; each row was seen to work, and to be needed, with this version


@dataclass(frozen=True)
class Patch:
    """`place` is module:name, or module:class.name; `make(original, plain)` gives what stands there instead."""

    place: str
    make: Callable[[Any, Plain], Any]
    reason: str
    checked_with: str = CHECKED_WITH

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]


# For every script.
DOOR = (
    Patch(
        "torch.nn.parallel:DistributedDataParallel",
        standins.wrap_model,
        "scripts for torchrun train over our engine; `isinstance` holds, it is a subclass of torch's",
    ),
    Patch("torch.nn.parallel.distributed:DistributedDataParallel", standins.wrap_model, "the same by its full name"),
)
_ASKING = {"exists": standins.exists, "is_file": standins.is_file, "is_dir": standins.is_folder}
# For scripts that know nothing of other ranks; undone as soon as one turns out to know.
PLAIN = (
    Patch(
        "torch.distributed:init_process_group",
        standins.join_others,
        "a script that joins the others after its first optimizer is no single-process script: all is undone first",
    ),
    Patch("torch.distributed.distributed_c10d:init_process_group", standins.join_others, "the same by its full name"),
    Patch(
        "torch.optim:Optimizer.__init__",
        standins.make_optimizer,
        "an optimizer's parameters are what is trained: they are kept the same on all ranks",
    ),
    Patch("torch.optim:Optimizer.add_param_group", standins.add_parameters, "so are those that join it later"),
    Patch(
        "torch.utils.data:DataLoader._index_sampler",
        data.choose_indices,
        "each rank takes its share; len() of the loader follows; sampler and batch_sampler stay as the script has them",
    ),
    Patch("torch.utils.data:DataLoader._get_iterator", data.iterate, "streams are strided"),
    Patch(
        "torch.utils.data.dataloader:_BaseDataLoaderIter._reset",
        data.begin_again,
        "with persistent workers one iterator serves all epochs: it must ask anew what to go through",
    ),
    Patch("torch.utils.data:DataLoader.__len__", data.count_batches, "so is their length"),
    Patch(
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
        data.hand_out,
        "tells which batch is computed now, for its weight, and when an epoch ends",
    ),
    Patch(
        "torch.autograd:backward",
        data.run_backward,
        "parts of a batch count as much as the loss says: for what they are a sum or a mean of",
    ),
    Patch(
        "torch.autograd:grad",
        standins.compute_gradients,
        "a script that updates its weights with these, and has no optimizer, is told that nothing is synchronised",
    ),
    Patch(
        "torch.optim.lr_scheduler:ReduceLROnPlateau.step",
        standins.step_on_plateau,
        "it decides by a figure that may differ between ranks: rank 0's decides for all",
    ),
    Patch("torch:save", standins.save, "one rank writes a checkpoint"),
    Patch("torch.serialization:save", standins.save, "the same by its full name"),
    Patch("torch:load", standins.load, "a rank that did not write reads what it would have written"),
    Patch("torch.serialization:load", standins.load, "the same by its full name"),
    Patch("os:replace", standins.rename, "checkpoints are written under another name first: one rank renames them"),
    Patch("os:rename", standins.rename, "the same by its other name"),
    Patch("shutil:copyfile", standins.copy, "the best checkpoint is a copy of the last: one rank makes it"),
    Patch("shutil:copy", standins.copy, "the same, into a folder"),
    Patch("shutil:copy2", standins.copy, "the same by its other name"),
    Patch("os.path:exists", standins.exists, "a checkpoint is there for ranks that did not write it, too"),
    Patch("os.path:isfile", standins.is_file, "the same for files only"),
    Patch("os.path:getsize", standins.measure, "so is its size, which scripts print"),
    *(
        Patch(f"pathlib:Path.{name}", make, "the same for paths, where they do not ask os.path")
        for name, make in _ASKING.items()
        if name in vars(pathlib.Path)  # not in every Python
    ),
    Patch("os.path:isdir", standins.is_folder, "a folder that is not there may be made by another rank now"),
    Patch("os:mkdir", standins.make_folder, "then it is no error to find it; os.makedirs and pathlib call this one"),
    Patch("os:remove", standins.remove, "old checkpoints are removed by who wrote them"),
    Patch("os:unlink", standins.remove, "the same by its other name"),
)
# The same for modules of libraries, applied when a script imports them.
_LIGHTNING, _TENSORBOARD, _IGNITE = "lightning 2.6.6", "tensorboard 2.21.0", "pytorch-ignite 0.5.5"
LIBRARIES = (
    Patch(
        "lightning.fabric.plugins.io.torch_io:_atomic_save",
        standins.save_atomically,
        "a Trainer on one device saves to memory, and writes that by itself: one rank writes a checkpoint",
        _LIGHTNING,
    ),
    Patch(
        "lightning.fabric.plugins.io.torch_io:TorchCheckpointIO.load_checkpoint",
        standins.load_checkpoint,
        "a rank that did not write reads what it would have written",
        _LIGHTNING,
    ),
    Patch("lightning.pytorch.core.saving:pl_load", standins.load, "so does load_from_checkpoint", _LIGHTNING),
    Patch(
        "lightning_fabric.plugins.io.torch_io:_atomic_save",
        standins.save_atomically,
        "the same for pytorch_lightning",
        _LIGHTNING,
    ),
    Patch(
        "lightning_fabric.plugins.io.torch_io:TorchCheckpointIO.load_checkpoint",
        standins.load_checkpoint,
        "the same for pytorch_lightning",
        _LIGHTNING,
    ),
    Patch("pytorch_lightning.core.saving:pl_load", standins.load, "the same for pytorch_lightning", _LIGHTNING),
    Patch(
        "ignite.handlers.checkpoint:DiskSaver._save_func",
        standins.save_by_handler,
        "its checkpoints are renamed from a file that it opens itself: one rank writes and removes them",
        _IGNITE,
    ),
    Patch(
        "torch.utils.tensorboard.writer:EventFileWriter",
        standins.write_events,
        "one rank writes the events of a SummaryWriter",
        _TENSORBOARD,
    ),
    Patch(
        "tensorboardX.writer:EventFileWriter", standins.write_events, "the same for tensorboardX", "tensorboardX 2.6.5"
    ),
)


class Patches:
    """Those that are in force."""

    def __init__(self) -> None:
        self._originals: list[tuple[Patch, Any, str, Any, Any]] = []  # and what stands in its place

    def apply(self, patches: Sequence[Patch], plain: Plain) -> None:
        """Raises `ConfigError` if this torch does not have one of the places."""
        for patch in patches:
            owner, name = _find(patch.place, patch.checked_with)
            original = vars(owner)[name]
            made = patch.make(original, plain)
            self._originals.append((patch, owner, name, original, made))
            setattr(owner, name, made)

    def undo(self, patches: Sequence[Patch] | None = None) -> None:
        """Put the originals of these, or of all, back; the last one first.

        Where something else was put since, it stays: what it finds below does nothing any more.
        """
        for patch, owner, name, original, made in reversed(self._originals):
            if (patches is None or patch in patches) and vars(owner)[name] is made:
                setattr(owner, name, original)
        self._originals = [entry for entry in self._originals if patches is not None and entry[0] not in patches]


def _find(place: str, checked_with: str) -> tuple[Any, str]:
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in outer:
        owner = getattr(owner, part, None)
    if owner is None or name not in vars(owner):
        raise ConfigError(
            f"this torch has no {path} in {module}: undertow was checked with {checked_with}. --plain off and "
            "--ddp off (UNDERTOW_PLAIN, UNDERTOW_DDP) run a script without it"
        )
    return owner, name
