"""Single-process scripts on two workers: failures are shown, and `shutdown` undoes all patches."""

from __future__ import annotations

import pytest

from tests.support.command import Cli

TRAIN = """
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


def step(x):
    if (x == 7).any():
        {failure}
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# In this order of the data the second rank meets the 7 first, in its first batch.
loader = DataLoader(TensorDataset(torch.arange(8.0).reshape(8, 1).expand(8, 2)), batch_size=2, shuffle=True)
print("trained by", len(loader), flush=True)
for (x,) in loader:
    step(x)
"""


def lines_of(rank: int, text: str) -> list[str]:
    prefix = f"[rank {rank}] "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def run_on_two(cli: Cli, source: str) -> tuple[int, str, str]:
    path = cli.folder / "train.py"
    path.write_text(source)
    cli.environment["OMP_NUM_THREADS"] = "1"
    result = cli.run("run", "-n", 2, path)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("failure", "told", "words"),
    [
        (
            "raise ValueError('seven')",
            "its script failed with ValueError: seven",
            [
                "Traceback (most recent call last):",
                '  File "{path}", line 23, in <module>',
                "    step(x)",
                '  File "{path}", line 10, in step',
                "    raise ValueError('seven')",
                "ValueError: seven",
            ],
        ),
        ("sys.exit('seven')", "its script ended with sys.exit('seven')", ["seven"]),
    ],
)
def test_a_rank_that_fails_is_heard(cli: Cli, failure: str, told: str, words: list[str]) -> None:
    code, out, err = run_on_two(cli, TRAIN.replace("{failure}", failure))
    assert code == 1
    assert lines_of(0, out) == ["trained by 2"]
    assert lines_of(1, out) == []
    assert lines_of(1, err) == [line.format(path=cli.folder / "train.py") for line in words]
    assert "rank 1 (host" in err.split("failed first")[0].splitlines()[-1]
    assert told in lines_of(0, err)[-1]


@pytest.mark.parametrize(("failure", "words"), [("sys.exit('no data')", "no data"), ("{}['x']", "KeyError: 'x'")])
def test_so_is_one_that_fails_before_there_is_an_optimizer(cli: Cli, failure: str, words: str) -> None:
    hidden = "os.environ['RA' + 'NK']"  # a script that spoke of it would not be held back
    code, out, err = run_on_two(cli, f"import os, sys\nprint('loading')\nif {hidden} == '1':\n    {failure}\n")
    assert code == 1
    assert lines_of(1, out) == ["loading"]
    assert lines_of(1, err)[-1] == words


def test_the_code_is_that_of_the_rank_that_fails(cli: Cli) -> None:
    code, out, err = run_on_two(cli, "import os, sys\nif os.environ['RA' + 'NK'] == '1':\n    sys.exit(5)\n")
    assert (code, lines_of(1, out), lines_of(1, err)) == (5, [], [])


def test_without_an_optimizer_all_are_heard_at_the_end(cli: Cli) -> None:
    code, out, err = run_on_two(cli, "import sys\nprint('one')\nprint('two', file=sys.stderr)\n")
    assert code == 0
    assert [lines_of(rank, out) + lines_of(rank, err) for rank in range(2)] == [["one", "two"]] * 2


# What stands where, told by where its code is: in the package's folder or not; the class by its module.
SHUTDOWN = """
import importlib
import os
import sys

import torch
from torch.utils.data import DataLoader

PLACES = {places}


PACKAGE = os.path.join(os.path.dirname(sys.modules["undertow"].__file__), "")


def is_ours(place):
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner = importlib.import_module(module)
    for part in outer:
        owner = getattr(owner, part)
    thing = vars(owner)[name]
    thing = getattr(thing, "fget", thing)
    if hasattr(thing, "__code__"):
        return thing.__code__.co_filename.startswith(PACKAGE)
    return thing.__module__.partition(".")[0] == "undertow"


def train():
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return len(loader)


print([place for place in PLACES if not is_ours(place)])
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.ones(8, 2), batch_size=2, shuffle=True)
print(train())
import undertow  # not before: a script that has imported it is left alone

undertow.shutdown()
print([place for place in PLACES if is_ours(place)])
print(train(), type(model.weight).__name__, len(model._forward_pre_hooks), undertow.is_initialized())
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print([finder for finder in sys.meta_path if type(finder).__module__.partition(".")[0] == "undertow"])
"""


def test_shutdown_undoes_every_patch_and_the_script_goes_on_alone(cli: Cli) -> None:
    from undertow.script.patches import DDP_PATCHES, SINGLE_PROCESS_PATCHES

    places = [patch.target for patch in (*DDP_PATCHES, *SINGLE_PROCESS_PATCHES)]
    code, out, err = run_on_two(cli, SHUTDOWN.replace("{places}", repr(places)))
    assert code == 0, err
    after = ["[]", "4 Parameter 0 False", "True True", "[]"]
    assert lines_of(0, out) == ["[]", "2", *after]
    assert lines_of(1, out)[-len(after) :] == after
