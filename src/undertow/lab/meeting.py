"""Where the workers in a lab find each other: the environments that `undertow run` would set.

In: a network, the user's environment.  Out: one environment for each host.
One worker per host, so a rank is a host's number.  The meeting point is on host 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from undertow.coordinator.rendezvous import MeetingPoint
from undertow.lab.cabling import INTERFACE
from undertow.lab.network import Network
from undertow.launch.environment import build_environment
from undertow.launch.nodes import Seat, choose_port


@contextmanager
def open_meeting(
    network: Network, environ: Mapping[str, str], *, start_timeout_s: float = 120
) -> Iterator[list[dict[str, str]]]:
    """One environment per host; the meeting point is open inside of the block.  Several may be open at once."""
    first = network.hosts[0]
    token = secrets.token_hex(16)
    with first.entered():
        point = MeetingPoint(first.address, 0, token.encode())
    with closing(point):
        with first.entered():
            port = choose_port(first.address, 0)
        point.start()
        seats = [
            Seat(
                node_rank=host.index,
                first_rank=host.index,
                nproc=1,
                world_size=len(network.hosts),
                master_addr=first.address,
                master_port=port,
                rendezvous=point.address,
                token=token,
                start_timeout_s=start_timeout_s,
            )
            for host in network.hosts
        ]
        base = _base(environ, network)
        yield [build_environment(base, seat, local_rank=0) for seat in seats]


def _base(environ: Mapping[str, str], network: Network) -> dict[str, str]:
    """What all hosts have in common; the user's number of threads wins, his addresses mean nothing here."""
    threads = {} if environ.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": "1"}
    if not network.is_shaped:
        # Without it undertow would see that all are on one host, and not use TCP.
        return {**environ, **threads, "UNDERTOW_ADDRESS": network.hosts[0].address}
    own = {name: value for name, value in environ.items() if name != "UNDERTOW_ADDRESS"}
    # Gloo would take the address of the host's name otherwise, and trust whatever the user's files say of it.
    return {**own, **threads, "GLOO_SOCKET_IFNAME": INTERFACE}
