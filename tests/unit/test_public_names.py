"""Nothing is public by accident, and importing undertow has no effects."""

from __future__ import annotations

import subprocess
import sys

import undertow
import undertow.kvstore
import undertow.torch


def test_the_package_offers_these_names() -> None:
    assert undertow.__all__ == [
        "ConfigError",
        "DriftError",
        "LabError",
        "MismatchError",
        "PeerLost",
        "PlanError",
        "Refused",
        "UndertowError",
        "__version__",
        "barrier",
        "bytes_sent",
        "init",
        "is_initialized",
        "local_rank",
        "local_world_size",
        "rank",
        "shutdown",
        "world_size",
    ]
    assert all(hasattr(undertow, name) for name in undertow.__all__)


def test_the_torch_frontend_offers_these_names() -> None:
    names = ["DistributedDataParallel", "distribute", "flush", "parallelize", "plan_of", "verify_replicas"]
    assert undertow.torch.__all__ == names


def test_the_store_offers_these_names() -> None:
    own = {
        name
        for name, value in vars(undertow.kvstore).items()
        if getattr(value, "__module__", "") == "undertow.kvstore" and not name.startswith("_")
    }
    assert own == {"create", "Handle", "KVStore"}
    assert public(undertow.kvstore.KVStore) == {"init", "push", "pull", "pushpull", "wait", "rank", "world_size"}
    assert public(undertow.kvstore.Handle) == {"wait", "is_done", "is_over"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


# Reading through os.environ's methods is what a look at a variable comes to.
IMPORT = """
import os, threading

class Watched(dict):
    def _note(self, name):
        if str(name).startswith("UNDERTOW") or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
            raise SystemExit(f"import reads {name}")
    def __getitem__(self, name):
        self._note(name)
        return super().__getitem__(name)
    def get(self, name, default=None):
        self._note(name)
        return super().get(name, default)
    def __contains__(self, name):
        self._note(name)
        return super().__contains__(name)

threads = threading.active_count()
before = set(os.listdir("/proc/self/fd"))
os.environ = Watched(os.environ)
import undertow, undertow.kvstore, undertow.horovod, undertow.cli
undertow.horovod.install()
undertow.cli.make_app(undertow.cli.COMMANDS)
import undertow.settings, undertow.observe.trace, undertow.engine.coordinator.rendezvous, undertow.launch.launcher
assert threading.active_count() == threads, threading.enumerate()
assert set(os.listdir("/proc/self/fd")) == before
import sys
assert "torch" not in sys.modules
import logging
assert not logging.getLogger().handlers and not logging.getLogger("undertow").handlers
"""


def test_importing_starts_no_thread_opens_nothing_and_reads_no_environment() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


IMPORT_TORCH = """
import sys, threading, torch
threads = threading.active_count()
import undertow.torch, undertow.horovod.torch
assert threading.active_count() == threads
undertow.init()
model = undertow.torch.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
assert "torch._dynamo" not in sys.modules  # two seconds
"""


def test_the_torch_frontend_starts_no_thread_when_imported_and_no_compiler_until_it_is_needed() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_TORCH], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
