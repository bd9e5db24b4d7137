"""Where the workers in a lab find each other: the environments that `undertow run` would set.

In: a network, the user's environment.  Out: one environment for each host.
One worker per host, so a rank is a host's number.  The rendezvous server is on host 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from undertow.engine.coordinator.rendezvous import RendezvousServer
from undertow.launch.host_rendezvous import HostAssignment, choose_port
from undertow.launch.worker_environment import build_environment
from undertow.tools.lab.iproute import INTERFACE
from undertow.tools.lab.network import Network


@contextmanager
def open_rendezvous(
    network: Network, environ: Mapping[str, str], *, start_timeout_s: float = 120
) -> Iterator[list[dict[str, str]]]:
    """Yield one environment per host; a rendezvous server is open inside of the block.  Several may be open."""
    first = network.hosts[0]
    token = secrets.token_hex(16)
    with first.entered():
        point = RendezvousServer(first.address, 0, token.encode())
    with closing(point):
        with first.entered():
            port = choose_port(first.address, 0)
        point.start()
        assignments = [
            HostAssignment(
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
        yield [build_environment(base, assignment, local_rank=0) for assignment in assignments]


def _base(environ: Mapping[str, str], network: Network) -> dict[str, str]:
    """Return what all hosts have in common; the user's number of threads counts, the user's addresses do not."""
    threads = {} if environ.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": "1"}
    if not network.is_shaped:
        # Without it undertow would see that all are on one host, and not use TCP.
        return {**environ, **threads, "UNDERTOW_ADDRESS": network.hosts[0].address}
    own = {name: value for name, value in environ.items() if name != "UNDERTOW_ADDRESS"}
    # Gloo would take the address of the host's name otherwise, and trust whatever the user's files say of it.
    return {**own, **threads, "GLOO_SOCKET_IFNAME": INTERFACE}
