"""Single-process scripts that use libraries which look for other workers themselves."""

from __future__ import annotations

import torch
from torch import nn

import undertow
from tests.cluster.test_plain_optimizers import flat, run


def train_beside_a_library(rank: int) -> tuple[list[float], bool]:
    """As pytorch-ignite does: it tries to import Horovod, and uses it if the script says so."""
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


def test_horovod_can_be_left_out() -> None:
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
