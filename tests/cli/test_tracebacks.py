"""Tracebacks through functions that undertow replaces: they are those of Python alone."""

from __future__ import annotations

from pathlib import Path

from tests.support.natively import SECOND, Case, check_same

# All failures of one run end it as a group, which shows the traceback of each.
FAILS = """
import os, pathlib, shutil
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError(index)

class BrokenSampler(Sampler):
    def __iter__(self):
        yield 0
        raise ValueError("no order")

    def __len__(self):
        return 4

def load():
    return torch.load("nothing.pt")

def load_nonsense():
    pathlib.Path("nonsense.pt").write_text("this is no checkpoint")
    return torch.load("nonsense.pt", weights_only=True)

def chained():
    try:
        load()
    except FileNotFoundError as error:
        raise RuntimeError("no checkpoint") from error

torch.manual_seed(0)
weight = torch.ones(1, requires_grad=True)
failures = []
for fail in (
    load,
    load_nonsense,
    chained,
    lambda: torch.save(weight, "no-folder/x.pt"),
    lambda: torch.save(lambda: 1, "x.pt"),
    lambda: os.replace("nothing", "x"),
    lambda: os.rename("nothing", "x"),
    lambda: shutil.copy("nothing", "x"),
    lambda: shutil.copyfile("nothing", "x"),
    lambda: os.remove("nothing"),
    lambda: pathlib.Path("nothing").unlink(),
    lambda: os.path.getsize("nothing"),
    lambda: os.path.exists([]),
    lambda: os.mkdir("no-folder/x"),
    lambda: os.makedirs("x.pt/y"),
    lambda: torch.ones(1).backward(),
    lambda: torch.autograd.grad(torch.ones(1), weight),
    lambda: torch.optim.SGD([], lr=0.1),
    lambda: list(DataLoader(Broken(), shuffle=True)),
    lambda: list(DataLoader(Broken(), sampler=BrokenSampler())),
    lambda: list(DataLoader([1, 2], sampler=BrokenSampler())),
    lambda: len(DataLoader(iter([]))),
    lambda: torch.distributed.init_process_group("no such backend"),
):
    try:
        fail()
    except Exception as error:
        failures.append(error)
    else:
        print("nothing raised by", fail.__code__.co_firstlineno)
print(len(failures))
# Of a group fifteen are shown.
raise ExceptionGroup("all", [ExceptionGroup("some", failures[at : at + 12]) for at in (0, 12)])
"""


def test_replaced_functions_leave_no_frames_in_a_traceback(tmp_path: Path) -> None:
    outcome = check_same(Case(script=FAILS, code=1, environment=SECOND), tmp_path)
    assert outcome.out == "23\n"
    assert outcome.err.count("Traceback (most recent call last)") == 25  # one is the cause of another, one the group
