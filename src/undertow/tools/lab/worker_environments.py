"""Environments of the workers in a lab, as `undertow run` would set them.

In: a network, the user's environment.  Out: one environment for each host.
Every host has one worker, so a rank is a host's number.  The rendezvous server is on host 0.
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
    """Open a rendezvous server, and yield one environment per host.  Several servers may be open at once."""
    first = network.hosts[0]
    token = secrets.token_hex(16)
    with first.entered():
        server = RendezvousServer(first.address, 0, token.encode())
    with closing(server):
        with first.entered():
            port = choose_port(first.address, 0)
        server.start()
        assignments = [
            HostAssignment(
                node_rank=host.index,
                first_rank=host.index,
                nproc=1,
                world_size=len(network.hosts),
                master_addr=first.address,
                master_port=port,
                rendezvous=server.address,
                token=token,
                start_timeout_s=start_timeout_s,
            )
            for host in network.hosts
        ]
        base = _find_common_variables(environ, network)
        yield [build_environment(base, assignment, local_rank=0) for assignment in assignments]


def _find_common_variables(environ: Mapping[str, str], network: Network) -> dict[str, str]:
    """Return the variables common to all hosts: the user's thread count is kept, the user's addresses are not."""
    threads = {} if environ.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": "1"}
    if not network.is_shaped:
        # Otherwise undertow would find that all workers are on one host, and not use TCP.
        return {**environ, **threads, "UNDERTOW_ADDRESS": network.hosts[0].address}
    own = {name: value for name, value in environ.items() if name != "UNDERTOW_ADDRESS"}
    # Otherwise Gloo would use the address of the host name, which the user's files may define differently.
    return {**own, **threads, "GLOO_SOCKET_IFNAME": INTERFACE}
