import torch, pytest
from torch import nn
import undertow, undertow.torch
from tests.workers import on_workers
from undertow.torch import DistributedDataParallel as D

@on_workers(2)
def test_outer(rank):
    import warnings; warnings.simplefilter("default")
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4,4), nn.BatchNorm1d(4), nn.Linear(4,1))
    ddp = D(m)
    model = torch.compile(ddp, backend="aot_eager")
    for s in range(3):
        ddp.zero_grad()
        model(torch.full((2,4), float(rank+s))).sum().backward()
    undertow.torch.verify_replicas(nn.ParameterList([p.grad for p in m.parameters()]))

@on_workers(2)
def test_inner(rank):
    import warnings; warnings.simplefilter("default")
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4,4), nn.Tanh(), nn.Linear(4,1))
    ddp = D(torch.compile(m, backend="aot_eager"))
    for s in range(3):
        ddp.zero_grad()
        ddp(torch.full((2,4), float(rank+s))).sum().backward()
    undertow.torch.verify_replicas(nn.ParameterList([p.grad for p in m.parameters()]))

@on_workers(2)
def test_grad_dtype(rank):
    m = nn.Linear(4,4,bias=False).bfloat16()
    m.weight.grad_dtype = torch.float32
    ddp = D(m)
    ddp(torch.full((1,4), float(rank)).bfloat16()).sum().backward()
    print(m.weight.grad)
    assert (m.weight.grad == .5).all(), m.weight.grad
    assert m.weight.grad.dtype is torch.float32

@on_workers(2)
def test_grad_dtype_large(rank):
    m = nn.Linear(800,800,bias=False).bfloat16()
    m.weight.grad_dtype = torch.float32
    ddp = D(m)
    ddp(torch.full((1,800), float(rank)).bfloat16()).sum().backward()
    print(m.weight.grad)
    assert (m.weight.grad == .5).all(), m.weight.grad
    assert m.weight.grad.dtype is torch.float32

@on_workers(2)
def test_half_later(rank):
    for n in (4, 800):
        m = nn.Linear(n,n,bias=False)
        ddp = D(m)
        ddp.bfloat16()
        ddp(torch.full((1,n), float(rank)).bfloat16()).sum().backward()
        assert (m.weight.grad == .5).all(), m.weight.grad
