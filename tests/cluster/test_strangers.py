"""Whoever connects without the token is refused and counted; training goes on."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import HANG_S, TOKEN, on_workers, outcomes_of
from undertow import kvstore
from undertow.engine.core import frames
from undertow.engine.core.frames import Header, Kind
from undertow.engine.wire import sockets, strangers
from undertow.engine.wire.auth import Handshake, Role, shake_hands
from undertow.runtime import process
from undertow.torch import DistributedDataParallel


def greeting(version: int = frames.VERSION) -> bytes:
    return frames.MAGIC + struct.pack("<H", version) + os.urandom(16)


def connect(address: str) -> socket.socket:
    return sockets._connect(address, HANG_S)


def bother(address: str) -> list[socket.socket]:
    """Everything that a stranger may try; the connections that were kept open."""
    attempts = [
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(1 << 20),
        greeting(version=99),
        greeting() + os.urandom(32),  # a proof that proves nothing
        Handshake(Role.DIALER, b"another token").start() + os.urandom(32),
        b"",  # silence
        greeting()[:10],  # half a greeting, then silence
    ]
    kept = []
    for attempt in attempts:
        sock = connect(address)
        with suppress(ConnectionError):  # refused while it still talks
            sock.sendall(attempt)
        kept.append(sock)
    connect(address).close()
    return kept


@on_workers(2)
def test_training_goes_on_while_strangers_knock(rank: int) -> None:
    strangers.STRANGER_TIMEOUT_S = 0.5
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    transport = process.default_group()._transport
    kept = bother(transport.address) + bother(transport.local_address)
    pause = threading.Event()
    done = torch.zeros(1)
    for _ in range(int(HANG_S * 20)):
        model.zero_grad()
        model(torch.full((1, 4), float(rank))).sum().backward()
        assert (model.module.weight.grad == 0.5).all()
        done[0] = transport.refused.total() >= 16
        if all_agree(done):
            break
        pause.wait(0.05)
    for sock in kept:
        sock.close()
    assert transport.refused.total() == 16, transport.refused
    assert not process.default_group().receiver.dropped


def all_agree(done: torch.Tensor) -> bool:
    kv = kvstore.create()
    kv.init("done", np.zeros(1, np.float32))
    out = np.zeros(1, np.float32)
    kv.pushpull("done", done.numpy(), out=out).wait()
    return bool(out[0] == undertow.world_size())


@on_workers(2)
def test_the_token_alone_does_not_give_a_place_in_the_group(rank: int) -> None:
    transport = process.default_group()._transport
    with connect(transport.address) as sock:
        shake_hands(sock, Role.DIALER, TOKEN.encode())
        sock.sendall(sockets.INTRODUCTION.pack(0, 1))
        assert sock.recv(1) == b""  # disconnected
    undertow.barrier()
    assert transport.refused.total() == 1


def join_with_own_token(rank: int) -> None:
    if rank == 2:
        os.environ["UNDERTOW_TOKEN"] = "another one"
    undertow.init(start_timeout_s=2)


def test_a_worker_with_another_token_is_refused_and_the_others_miss_it() -> None:
    outcomes = outcomes_of(3, join_with_own_token, init=False)
    assert [outcome.kind for outcome in outcomes] == ["PeerLost", "PeerLost", "Refused"]
    assert "rank 2 of 3 did not arrive" in outcomes[0].text
    assert "wrong token" in outcomes[2].text


@on_workers(2)
def test_frames_that_make_no_sense_are_dropped_and_counted(rank: int) -> None:
    """A peer with the token but with a defect, or of another job, cannot do harm either."""
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    group, peer = process.default_group(), 1 - rank
    job = group.shape.job
    key = model._synchroniser._gradients[0].table.first.slices[0].spec.key  # type: ignore[union-attr]
    senseless = [
        (Header(Kind.PUSH, key=10**6, step=1, rank=rank, length=8, job=job), b"unknown "),
        (Header(Kind.RESULT, key=key, step=99, rank=rank, length=8, job=job), b"unwanted"),
        (Header(Kind.PULL, key=10**6, rank=rank, job=job), None),
        (Header(Kind.CONTROL, rank=rank, length=8, job=job), b"\xc1garbage"),
        (Header(Kind.CONTROL, rank=rank, length=8, job=job + 1), b"stranger"),
        (Header(Kind.PUSH, key=key, rank=5, step=1, length=8, job=job), b"an alias"),
        (Header(Kind.RECEIVED, rank=rank, received=1 << 40, job=job), None),
        (Header(Kind.PUSH, key=key, step=1, rank=rank, length=80_000, job=job), bytes(80_000)),
    ]
    for header, body in senseless:
        process.loop().post(group._transport.send, peer, frames.pack(header, header.received), body)
    undertow.barrier()  # comes after them, on the link to or from rank 0
    model(torch.full((1, 4), float(rank))).sum().backward()
    assert (model.module.weight.grad == 0.5).all()
    assert group.receiver.dropped.total() == len(senseless), group.receiver.dropped


@on_workers(2)
def test_sockets_listen_on_the_interface_in_use_only(rank: int) -> None:
    assert process.default_group()._transport.address.startswith("127.0.0.1:")
    port = int(process.default_group()._transport.address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=HANG_S)
