"""If ranks disagree, all of them immediately get an error about the first difference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import RETURNED, hear, outcomes_of, say, start_workers
from undertow.torch import DistributedDataParallel


def make_module(difference: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    if difference == "shape":
        module[1] = nn.Linear(4, 6)
    if difference == "dtype":
        module[1].double()
    if difference == "count":
        module.append(nn.Linear(5, 2))
    if difference == "name":
        module = nn.Sequential(module[0])
        module.add_module("other", nn.Linear(4, 5))
    if difference == "frozen":
        module[1].bias.requires_grad_(False)
    if difference == "empty":
        module = nn.Sequential()
    if difference == "buffer":
        module[1].register_buffer("extra", torch.zeros(2))
    return module


def wrap(rank: int, difference: str) -> None:
    DistributedDataParallel(make_module(difference if rank == 1 else ""))


EXPECTED = {
    "shape": ["ranks 0 and 1", "'1.bias' [5] torch.float32 against '1.bias' [6] torch.float32"],
    "dtype": ["ranks 0 and 1", "'1.bias' [5] torch.float32 against '1.bias' [5] torch.float64"],
    "count": ["ranks 0 and 1", "'2.bias' [2] torch.float32"],
    "name": ["ranks 0 and 1", "'1.bias' [5] torch.float32 against 'other.bias' [5] torch.float32"],
    "frozen": ["ranks 0 and 1", "'1.bias' [5] torch.float32"],
    "buffer": ["ranks 0 and 1", "'1.extra' [2] torch.float32"],
}


@pytest.mark.parametrize("difference", EXPECTED)
def test_all_ranks_get_the_first_difference(difference: str) -> None:
    for outcome in outcomes_of(3, wrap, difference):
        assert outcome.kind == "MismatchError", outcome
        for part in EXPECTED[difference]:
            assert part in outcome.text


def test_other_ranks_name_a_rank_without_trainable_parameters() -> None:
    outcomes = outcomes_of(3, wrap, "empty")
    assert outcomes[1].kind == "NothingToTrain"
    for rank in (0, 2):
        assert outcomes[rank].kind == "PeerLost"
        assert "rank 1 on host" in outcomes[rank].text
        assert "its script failed with NothingToTrain" in outcomes[rank].text


def do_different_things(rank: int) -> None:
    if rank == 1:
        undertow.torch.verify_replicas(nn.Linear(2, 2))
    else:
        undertow.barrier()


def test_ranks_at_different_calls_get_the_names_of_both() -> None:
    for outcome in outcomes_of(3, do_different_things):
        assert outcome.kind == "MismatchError"
        assert "rank 0 is at 'barrier', rank 1 at 'digest'" in outcome.text


def wrap_again(rank: int) -> None:
    with pytest.raises(undertow.MismatchError):
        wrap(rank, "shape")
    with pytest.raises(undertow.MismatchError) as caught:
        wrap(rank, "")
    say(str(caught.value))
    hear()  # the coordinator stays until every rank has called it


def test_after_a_mismatch_every_call_raises_the_first_cause() -> None:
    crew = start_workers(2, wrap_again)
    texts = [crew.heard(rank) for rank in range(2)]
    for rank in range(2):
        crew.tell(rank, "end")
    assert [outcome.kind for outcome in crew.outcomes()] == [RETURNED] * 2
    assert all("'1.bias' [5]" in text for text in texts), texts
