"""Commands for `ip` and `tc` of iproute2 that build the emulated network.

In: a host's number, the rate of its link.  Out: its name, address and switch port, and the commands that create them.
`run_batch` runs many commands in one process, in the network namespace of the calling thread; nothing else here
touches the network.  Both directions of a link are shaped: outgoing traffic at the host's eth0, incoming traffic at its
switch port.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from undertow.errors import LabError

# Not always in an administrator's PATH (`su` without a dash).
_MORE_FOLDERS = ("/usr/sbin", "/sbin")
MAX_HOSTS = 250  # of the 254 that a /24 has
INTERFACE = "eth0"
SWITCH = "switch"
_NETWORK = "10.77.0.0/24"
_GROUP = 77  # of all links: one command deletes them together, and the kernel waits once instead of once per link
# A bucket holds 4 ms at the link's rate.  Tokens are lost while it is full, and a virtual machine's
# timers may fire milliseconds late: with 1 ms, a link was sometimes 10 % too slow.
# After a pause this much passes at once, about 1 % of a training step.
BURST_S = 0.004
# At least a few full frames, or slow links would stall between timer ticks.
SMALLEST_BURST_BYTES = 8 << 10
# A switch port queues about 10 ms of traffic before it drops packets, like a cheap switch.
PORT_QUEUE_S = 0.010
SMALLEST_QUEUE_BYTES = 64 << 10
# A host does not drop its own packets: its sockets wait for space in the card's ring.
HOST_QUEUE_BYTES = 8 << 20


def find_tool(name: str) -> str | None:
    """Return the path of the tool; None if it is not installed."""
    folders = [*os.get_exec_path(), *_MORE_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def run_batch(name: str, lines: Sequence[str]) -> None:
    """Run all commands in one process: starting a process takes longer than many commands."""
    tool = find_tool(name)
    if tool is None:
        raise LabError(f"{name} is not installed: get it with the package iproute2")
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run([tool, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"cannot set up the emulated network: {name} failed: {reason}")


def name_of(host: int) -> str:
    return f"host{host}"


def address_of(host: int) -> str:
    return f"10.77.0.{host + 1}"


def port_of(host: int) -> str:
    """Return the name of the switch's end of a host's link."""
    return f"h{host}"


def set_up_switch() -> list[str]:
    # Ports forward immediately, and the switch sends no packets of its own.
    bridge = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    return [f"link add {SWITCH} group {_GROUP} {bridge}", f"link set {SWITCH} up"]


def add_link(host: int, namespace: str) -> list[str]:
    """Return the commands that link a switch port to the host behind this namespace file."""
    far_end = f"name {INTERFACE} address {_mac_of(host)} netns {namespace}"
    return [
        f"link add {port_of(host)} group {_GROUP} type veth peer {far_end}",
        f"link set {port_of(host)} master {SWITCH} up",
    ]


def set_up_host(host: int, hosts: int, *, congestion_control: str | None = None) -> list[str]:
    """Return the commands to run on the host itself after its link has been added."""
    own = [f"addr add {address_of(host)}/24 dev {INTERFACE}", "link set lo up", f"link set {INTERFACE} up"]
    if congestion_control:
        # Set on the route: a namespace's default must be one that the administrator has allowed.
        own.append(
            f"route change {_NETWORK} dev {INTERFACE} proto kernel scope link src {address_of(host)} "
            f"congctl {congestion_control}"
        )
    return own + [_add_neighbour(peer) for peer in range(hosts) if peer != host]


def remove_links() -> list[str]:
    """Return the commands that remove the switch and all links, with both ends."""
    return [f"link del group {_GROUP}"]


def format_hosts_file(hosts: int) -> str:
    """Return lines for /etc/hosts.

    Dual-stack sockets look names up by the mapped IPv6 address: torch's store does, and warns if it finds none.
    """
    lines = [
        f"{address_of(host)} {name_of(host)}\n::ffff:{address_of(host)} {name_of(host)}.lab\n" for host in range(hosts)
    ]
    return "".join(lines)


def _add_neighbour(peer: int) -> str:
    # Replaces ARP, whose requests would be in the counters.  Its answers from 33 hosts that all know
    # each other would fill the kernel's neighbour table, which all namespaces share.
    return f"neigh add {address_of(peer)} lladdr {_mac_of(peer)} dev {INTERFACE} nud permanent"


def _mac_of(host: int) -> str:
    return f"02:00:00:00:00:{host + 1:02x}"


def burst_bytes(rate_bits_per_s: float) -> int:
    """Return the number of bytes that may pass at once after a pause."""
    return int(max(BURST_S * rate_bits_per_s / 8, SMALLEST_BURST_BYTES))


def queue_bytes(rate_bits_per_s: float, *, is_port: bool) -> int:
    """Return the size of a switch port's queue, beyond which packets are dropped, or of a host's, which never drops."""
    least = SMALLEST_QUEUE_BYTES if is_port else HOST_QUEUE_BYTES
    return int(max(PORT_QUEUE_S * rate_bits_per_s / 8, least))


def shape_command(device: str, rate_bits_per_s: float | None, *, is_port: bool) -> str:
    """Return the `tc` command that limits outgoing traffic of this device; without a rate, that removes the limit."""
    if rate_bits_per_s is None:
        return f"qdisc del dev {device} root"
    queue = queue_bytes(rate_bits_per_s, is_port=is_port)
    bucket = f"rate {round(rate_bits_per_s)}bit burst {burst_bytes(rate_bits_per_s)} limit {queue}"
    return f"qdisc replace dev {device} root tbf {bucket}"
