"""The tools `ip` and `tc` of iproute2, and the lines that tell them how the emulated network is.

In: a host's number, its link's rate.  Out: its name, address and port of the switch, and the commands that make them.
`run_batch` gives many commands to a tool at once, in the network namespace of the calling thread; nothing else here
touches the network.  Both directions of a link are shaped: what a host sends by its own eth0, what it receives by its
port of the switch.
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
_GROUP = 77  # of all links, so that one command takes them down: one by one the kernel waits after each
# A bucket holds 4 ms of the rate.  Tokens are lost while it is full, and on a virtual machine the
# kernel's timers may come late by milliseconds: with 1 ms a link was now and then a tenth too slow.
# After every pause so much passes at once, which is one percent or so of a training step.
BURST_S = 0.004
# Some full frames in any case, or slow links would stall between the timer's ticks.
SMALLEST_BURST_BYTES = 8 << 10
# What a switch keeps for one port before it drops: about 10 ms of it, as cheap switches do.
PORT_QUEUE_S = 0.010
SMALLEST_QUEUE_BYTES = 64 << 10
# A host does not drop its own packets: its sockets wait for room in the card's ring instead.
HOST_QUEUE_BYTES = 8 << 20


def find_tool(name: str) -> str | None:
    """Return where the tool is; None if it is not installed."""
    folders = [*os.get_exec_path(), *_MORE_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def run_batch(name: str, lines: Sequence[str]) -> None:
    """Run all commands in one process: its start costs more than many of them."""
    tool = find_tool(name)
    if tool is None:
        raise LabError(f"{name} is not installed: get it with the package iproute2")
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run([tool, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"the emulated network cannot be set up: {name} says: {reason}")


def name_of(host: int) -> str:
    return f"host{host}"


def address_of(host: int) -> str:
    return f"10.77.0.{host + 1}"


def port_of(host: int) -> str:
    """Return the switch's end of a host's link."""
    return f"h{host}"


def set_up_switch() -> list[str]:
    # Every port forwards at once, and the switch has nothing to say itself.
    bridge = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    return [f"link add {SWITCH} group {_GROUP} {bridge}", f"link set {SWITCH} up"]


def lay_cable(host: int, namespace: str) -> list[str]:
    """Make a link from a port of the switch to the host behind this namespace file."""
    there = f"name {INTERFACE} address {_mac_of(host)} netns {namespace}"
    return [
        f"link add {port_of(host)} group {_GROUP} type veth peer {there}",
        f"link set {port_of(host)} master {SWITCH} up",
    ]


def set_up_host(host: int, hosts: int, *, congestion_control: str | None = None) -> list[str]:
    """Return the commands to run on the host itself, once its cable is there."""
    own = [f"addr add {address_of(host)}/24 dev {INTERFACE}", "link set lo up", f"link set {INTERFACE} up"]
    if congestion_control:
        # By the route: a namespace's own default may only be one that the administrator has released.
        own.append(
            f"route change {_NETWORK} dev {INTERFACE} proto kernel scope link src {address_of(host)} "
            f"congctl {congestion_control}"
        )
    return own + [_introduce(peer) for peer in range(hosts) if peer != host]


def take_down() -> list[str]:
    """Return the commands that remove the switch and all cables, with both their ends."""
    return [f"link del group {_GROUP}"]


def list_names(hosts: int) -> str:
    """Lines for /etc/hosts.  A socket that also speaks IPv6 asks for a name in its own way: torch's store does,
    and complains when there is none."""
    lines = [
        f"{address_of(host)} {name_of(host)}\n::ffff:{address_of(host)} {name_of(host)}.lab\n" for host in range(hosts)
    ]
    return "".join(lines)


def _introduce(peer: int) -> str:
    # Instead of ARP: no questions in the counters, and the kernel's table of answers, which all
    # namespaces share, would be full with 33 hosts that all know each other.
    return f"neigh add {address_of(peer)} lladdr {_mac_of(peer)} dev {INTERFACE} nud permanent"


def _mac_of(host: int) -> str:
    return f"02:00:00:00:00:{host + 1:02x}"


def burst_bytes(rate_bits_per_s: float) -> int:
    """Return how much may pass at once after a pause."""
    return int(max(BURST_S * rate_bits_per_s / 8, SMALLEST_BURST_BYTES))


def queue_bytes(rate_bits_per_s: float, *, is_port: bool) -> int:
    """Return how much waits at the switch before packets are dropped, or at the sender, which never drops."""
    least = SMALLEST_QUEUE_BYTES if is_port else HOST_QUEUE_BYTES
    return int(max(PORT_QUEUE_S * rate_bits_per_s / 8, least))


def shape_command(device: str, rate_bits_per_s: float | None, *, is_port: bool) -> str:
    """Return the command for `tc` that limits what leaves through this device; without a rate, that takes it off."""
    if rate_bits_per_s is None:
        return f"qdisc del dev {device} root"
    queue = queue_bytes(rate_bits_per_s, is_port=is_port)
    bucket = f"rate {round(rate_bits_per_s)}bit burst {burst_bytes(rate_bits_per_s)} limit {queue}"
    return f"qdisc replace dev {device} root tbf {bucket}"
