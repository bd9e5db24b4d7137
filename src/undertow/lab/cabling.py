"""Who is who in the emulated network, as lines for `ip`.

In: a host's number.  Out: its name, address and port of the switch, and the commands that make them.
Nothing here touches the network.
"""

from __future__ import annotations

MAX_HOSTS = 250  # of the 254 that a /24 has
INTERFACE = "eth0"
SWITCH = "switch"
_NETWORK = "10.77.0.0/24"
_GROUP = 77  # of all links, so that one command takes them down: one by one the kernel waits after each


def name_of(host: int) -> str:
    return f"host{host}"


def address_of(host: int) -> str:
    return f"10.77.0.{host + 1}"


def port_of(host: int) -> str:
    """The switch's end of a host's link."""
    return f"h{host}"


def set_up_switch() -> list[str]:
    # Every port forwards at once, and the switch has nothing to say itself.
    bridge = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    return [f"link add {SWITCH} group {_GROUP} {bridge}", f"link set {SWITCH} up"]


def lay_cable(host: int, namespace: str) -> list[str]:
    """A link from a port of the switch to the host behind this namespace file."""
    there = f"name {INTERFACE} address {_mac_of(host)} netns {namespace}"
    return [
        f"link add {port_of(host)} group {_GROUP} type veth peer {there}",
        f"link set {port_of(host)} master {SWITCH} up",
    ]


def set_up_host(host: int, hosts: int, *, congestion_control: str | None = None) -> list[str]:
    """To be run on the host itself, once its cable is there."""
    own = [f"addr add {address_of(host)}/24 dev {INTERFACE}", "link set lo up", f"link set {INTERFACE} up"]
    if congestion_control:
        # By the route: a namespace's own default may only be one that the administrator has released.
        own.append(
            f"route change {_NETWORK} dev {INTERFACE} proto kernel scope link src {address_of(host)} "
            f"congctl {congestion_control}"
        )
    return own + [_introduce(peer) for peer in range(hosts) if peer != host]


def take_down() -> list[str]:
    """The switch and all cables, with both their ends."""
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
