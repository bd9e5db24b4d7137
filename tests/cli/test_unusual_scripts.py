"""Unusual scripts: without an optimizer, with processes of their own, from a notebook, with a fake torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Cli
from tests.support.natively import SECOND, Case, check_same, run_both, run_ours

NOTEBOOK = """\
#!/usr/bin/env python
# coding: utf-8

# # Some data
#
# A cell of text.

# In[1]:


import json
# %matplotlib inline


# In[2]:


try:
    get_ipython().run_line_magic('matplotlib', 'inline')
    from IPython.display import display
except NameError:
    display = print

table = {'x': [1, 2, 3]}
display(table)
table


# In[ ]:


json.dumps(table)
print(__name__, [name for name in globals() if not name.startswith('_')])


# In[3]:


get_ipython().system('ls')
"""
STARTS_PROCESSES = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

print("imported as", __name__, sys.argv, flush=True)


def square(number):
    return number * number


if __name__ == "__main__":
    for kind in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(kind)
        process = context.Process(target=square, args=(2,))
        process.start()
        process.join()
        print(kind, process.exitcode, flush=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print(pool.map(square, range(4)), flush=True)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        print(list(pool.map(square, range(4))), flush=True)
        try:
            pool.submit(int, "no number").result()
        except ValueError as error:
            print(error, flush=True)
"""
CASES = {
    "a notebook as a script": Case(script=NOTEBOOK, code=1),  # its last cell cannot work
    "processes of its own": Case(script=STARTS_PROCESSES, words=("script.py", "--lr", "1")),
    "processes of a module": Case(script=STARTS_PROCESSES, words=("-m", "script")),
    "a process that starts too early": Case(  # Python explains that; the child's traceback is the same, too
        script="import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
        "process = multiprocessing.Process(target=print)\nprocess.start()\nprocess.join()\nprint(process.exitcode)",
    ),
    "torch that fails": Case(
        script="import torch",
        files={"torch/__init__.py": "from . import part", "torch/part.py": "def f():\n    1 / 0\n\nf()"},
        code=1,
    ),
    "torch that lacks something": Case(
        script="import torch", files={"torch/__init__.py": "import nothing_there"}, code=1
    ),
    "torch with a syntax error": Case(script="import torch", files={"torch/__init__.py": "def ("}, code=1),
    "no torch": Case(
        script="import sys\nsys.path = [path for path in sys.path if 'site-packages' not in path]\nimport torch", code=1
    ),
    "torch at the second try": Case(
        script="import os\ntry:\n    import torch\nexcept ZeroDivisionError:\n    os.environ['X'] = ''\n"
        "import torch\nprint(torch.__spec__, torch.__loader__, vars(torch.__loader__))",
        files={"torch/__init__.py": "import os\nif 'X' not in os.environ:\n    1 / 0"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_behaves_as_ever(name: str, tmp_path: Path) -> None:
    check_same(CASES[name], tmp_path)


def test_the_processes_of_another_rank_behave_as_well(tmp_path: Path) -> None:
    """Children print immediately and their parent at its end, so only the order differs."""
    native, ours = run_both(Case(script=STARTS_PROCESSES, environment=SECOND), tmp_path)
    assert (ours.code, ours.err) == (native.code, native.err) == (0, "")
    assert sorted(ours.out.splitlines()) == sorted(native.out.splitlines())


def test_torch_is_found_as_it_is(tmp_path: Path) -> None:
    """Although undertow has changed it, and the script has looked up its path long before the import."""
    script = """
        import importlib.resources, importlib.util, sys
        found = importlib.util.find_spec("torch")
        print(found, type(found.loader), found.loader.is_package("torch"), "torch" in sys.modules)
        import torch
        print(torch.__spec__, torch.__loader__ is torch.__spec__.loader, vars(torch.__loader__), torch.__file__)
        print(importlib.resources.files("torch").joinpath("version.py").is_file())
        open("module", "w").write(torch.nn.parallel.DistributedDataParallel.__module__)
    """
    check_same(Case(script=script), tmp_path)
    assert (tmp_path / "python" / "module").read_text() == "torch.nn.parallel.distributed"
    assert (tmp_path / "undertow" / "module").read_text() == "undertow.torch.ddp.wrapper"


OWN_RULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
data = TensorDataset(torch.randn(40, 5), torch.randn(40, 1))
model = torch.nn.Linear(5, 1)
for epoch in range(2):
    batches = 0
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        batches += 1
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
                p.grad = None
    print(epoch, batches, loss.item())
"""


def test_without_an_optimizer_a_script_computes_what_it_computes(cli: Cli) -> None:
    """With one worker and with each of two: nothing is exchanged, because nothing would keep them in step."""
    native, ours = run_both(Case(script=OWN_RULE), cli.folder)
    assert ours == native
    assert native.out.startswith("0 10 ")
    cli.environment["OMP_NUM_THREADS"] = "1"
    result = cli.run("run", "-n", 2, cli.folder / "python" / "script.py")
    assert result.returncode == 0
    assert "computes gradients without a torch.optim optimizer" in result.stderr
    for rank in range(2):
        lines = [line for line in result.stdout.splitlines(keepends=True) if line.startswith(f"[rank {rank}] ")]
        assert "".join(line.removeprefix(f"[rank {rank}] ") for line in lines) == native.out


CHILDREN = """
import multiprocessing
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


def find_optimizer():
    return os.path.basename(torch.optim.Optimizer.__init__.__code__.co_filename)


class Files(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return find_optimizer()


def train(index):
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for (x,) in (loader := DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2, shuffle=True)):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    print("child", find_optimizer(), len(loader), model.weight.tolist(), flush=True)


if __name__ == "__main__":
    kind = sys.argv[1]
    print(find_optimizer())
    print([*DataLoader(Files(), num_workers=2 if kind == "fork" else 1, multiprocessing_context=kind)])
    torch.multiprocessing.start_processes(train, nprocs=1, start_method=kind)
    print("end")
"""


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_children_of_a_script_are_left_alone(kind: str, tmp_path: Path) -> None:
    """Children find the original torch, and train independently if they train."""
    environment = {**SECOND, "OMP_NUM_THREADS": "1"}
    outcome = run_ours(Case(script=CHILDREN, words=("script.py", kind), environment=environment), tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "child optimizer.py 4 [[-1.0, -1.0]]",  # at once, what its parent says when it ends
        "replacements.py",
        "[['optimizer.py'], ['optimizer.py']]",
        "end",
    ]
