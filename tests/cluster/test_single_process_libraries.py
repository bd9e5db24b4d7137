"""Single-process scripts that use libraries which look for other workers themselves."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undertow
from tests.support.single_process import flat, run


def train_beside_a_library(rank: int) -> tuple[list[float], bool]:
    """Try to import Horovod, as pytorch-ignite does, which uses it only if the script chooses it."""
    try:
        import horovod.torch as hvd
    except ImportError:
        hvd = None
    torch.manual_seed(rank)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    optimizer.step()
    return flat(model), hvd is not None


def test_a_library_that_tries_to_import_horovod_changes_nothing() -> None:
    (weights0, found0), (weights1, found1) = run(2, train_beside_a_library)
    assert weights0 == weights1
    assert (found0, found1) == (True, True)


def look_for_horovod(rank: int) -> bool:
    try:
        import horovod.torch  # noqa: F401
    except ImportError:
        return False
    return True


def test_horovod_can_be_turned_off() -> None:
    assert run(1, look_for_horovod, UNDERTOW_HOROVOD="off") == [False]


def initialise_horovod(rank: int) -> list[float]:
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(rank)
    model = nn.Linear(2, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert undertow.is_initialized()
    return flat(model)


def test_a_script_that_initialises_horovod_is_left_alone() -> None:
    weights0, weights1 = run(2, initialise_horovod)
    assert weights0 != weights1


def fit(rank: int, folder: Path, package: str) -> tuple[list[str], list[float]]:
    """Train with every rank in a folder of its own, as on its own host.  Each checkpoint replaces the last one."""
    warnings.simplefilter("ignore")  # Lightning's advice
    lightning = pytest.importorskip(package)

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 2)), 4, shuffle=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    own = folder / str(rank)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, default_root_dir=own, **quiet)
    trainer.fit(Model(), loader)
    trainer.save_checkpoint(own / "last.ckpt")
    trainer.strategy.checkpoint_io.load_checkpoint(own / "last.ckpt")
    loaded = Model.load_from_checkpoint(own / "last.ckpt", weights_only=False)
    return sorted(path.name for path in own.rglob("*.ckpt")), flat(loaded)


def test_one_rank_writes_the_checkpoints_of_a_lightning_trainer(tmp_path: Path) -> None:
    (files0, weights0), (files1, weights1) = run(2, fit, tmp_path, "lightning")
    assert files0 == ["epoch=1-step=4.ckpt", "last.ckpt"]
    assert files1 == []
    assert weights0 == weights1


def write_summary(rank: int, folder: Path, library: str, knows: bool) -> int:
    """Create the writer before the optimizer, and write before and after that."""
    warnings.simplefilter("ignore")
    with importlib.import_module(library).SummaryWriter(str(folder / str(rank))) as writer:
        writer.add_scalar("early", 1.0, 0)
        if knows:
            undertow.init()
        torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        writer.add_scalar("late", 1.0, 0)
    return sum(b"early" in path.read_bytes() and b"late" in path.read_bytes() for path in folder.glob(f"{rank}/*"))


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
@pytest.mark.parametrize(("knows", "written"), [(False, [1, 0]), (True, [1, 1])])
def test_one_rank_writes_the_events_of_a_summary_writer(
    library: str, knows: bool, written: list[int], tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library}.SummaryWriter needs a package that is not installed")
    assert run(2, write_summary, tmp_path, library, knows) == written
