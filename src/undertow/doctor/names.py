"""Which of the named hosts is this one?

In: the names of `--hosts`, what they resolve to, the own addresses.  Out: this host's number, or an error in words.
`resolve` asks the system, with a time limit that the system's own call does not have; the rest is pure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from undertow.doctor.interfaces import is_loopback
from undertow.errors import ConfigError
from undertow.wire.routes import look_up

RESOLVE_S = 10.0


def split_hosts(text: str) -> list[str]:
    """The names in their order; an empty or a repeated one is refused."""
    names = [part.strip().strip("[]") for part in text.split(",")]
    if not all(names):
        raise ConfigError(f"--hosts {text!r} has an empty name: write it as a,b,c")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--hosts names {name} twice: list every host once")
    return names


def resolve(names: Sequence[str], *, limit_s: float = RESOLVE_S) -> dict[str, list[str]]:
    """The addresses of every name; none for what is not known, or not in time."""
    found: dict[str, list[str]] = {name: [] for name in names}
    threads = [threading.Thread(target=_ask, args=[name, found], daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return dict(found)


def _ask(name: str, found: dict[str, list[str]]) -> None:
    try:
        answers = look_up(name)
    except OSError:
        return
    found[name] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def find_own_rank(names: Sequence[str], resolved: Mapping[str, Sequence[str]], own: Sequence[str]) -> int:
    """This host's number among the names."""
    ranks = [rank for rank, name in enumerate(names) if any(_is_own(one, own) for one in resolved[name])]
    if len(ranks) == 1:
        return ranks[0]
    say_it = "say which one with --node-rank"
    if ranks:
        which = " and ".join(names[rank] for rank in ranks)
        raise ConfigError(f"{which} of --hosts are both this host: list it once, or {say_it}")
    known = ", ".join(address for address in own if not is_loopback(address)) or "none but loopback"
    raise ConfigError(f"none of {', '.join(names)} is this host (its addresses: {known}): correct --hosts, or {say_it}")


def check_apart(names: Sequence[str], resolved: Mapping[str, Sequence[str]]) -> None:
    """Two names of one address are one host."""
    owner: dict[str, str] = {}
    for name in names:
        for address in resolved[name]:
            if owner.setdefault(address, name) != name:
                raise ConfigError(f"{owner[address]} and {name} of --hosts are both {address}: list every host once")


def _is_own(address: str, own: Sequence[str]) -> bool:
    return address.partition("%")[0] in own or is_loopback(address)
