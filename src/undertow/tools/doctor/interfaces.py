"""Judges the network interface that workers would use: which one it is, why, and whether it would work.

In: the facts, the job's scope.  Out: findings.  Pure.
"""

from __future__ import annotations

import ipaddress
import itertools
import re

from undertow.tools.doctor.facts import Host, Interface, Network, Scope
from undertow.tools.doctor.findings import Finding, fail, note, ok, warn
from undertow.units import format_bandwidth

# Bridges inside this host, for containers and virtual machines.
_INNER = re.compile(r"(docker|podman|cni|virbr|lxcbr|br-)")
_WIRELESS = re.compile(r"wl")
IN_USE, PORTS = "interface in use", "ports"  # subjects
SLOW_MBIT = 1000  # undertow is made for 1 Gbit/s and more
# The least MTU that IPv6 requires; every Ethernet has more.
SMALLEST_MTU = 1280


def judge_network(facts: Host, scope: Scope) -> list[Finding]:
    network = facts.network
    return [
        *_list_interfaces(network.interfaces),
        *_judge_use(network, facts.interface, scope),
        *_judge_ports(network, scope),
        *_judge_hostname(network),
    ]


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def describe(one: Interface, address: str = "") -> str:
    """Describe an interface: `eth0 (10.0.0.1, MTU 1500, 10 Gbit/s)`."""
    words = [address or ", ".join(one.addresses) or "no address", f"MTU {one.mtu}"]
    words += [format_bandwidth(one.speed_mbit * 1e6)] if one.speed_mbit else []
    words += [] if one.is_up else ["down"]
    return f"{one.name} ({', '.join(words)})"


def _list_interfaces(interfaces: list[Interface]) -> list[Finding]:
    shown = [describe(one) for one in interfaces if one.is_up]
    down = [one.name for one in interfaces if not one.is_up]
    words = [*shown, *([f"down: {', '.join(down)}"] if down else [])]
    return [ok("interfaces", "; ".join(words))] if words else [note("interfaces", "the kernel does not list them")]


def _judge_use(network: Network, interface: Interface | None, scope: Scope) -> list[Finding]:
    use = network.use
    if use.error:
        cure = "check the name, the cable and the routes (ip route), or set UNDERTOW_ADDRESS to an address of this host"
        return [fail(IN_USE, use.error, cure)]
    if scope.hosts > 1 and not scope.is_local and is_loopback(use.address):
        text = f"{use.address}, because {use.because}: the other hosts cannot reach a loopback address"
        return [fail(IN_USE, text, "give the first host by its IP address in your network")]
    if is_loopback(use.address) and any(one.is_loopback and not one.is_up for one in network.interfaces):
        return [fail(IN_USE, f"{use.address}, but loopback is down", "bring it up: ip link set lo up")]
    if interface is None:
        if is_loopback(use.address) or not network.interfaces:
            return [ok(IN_USE, f"{use.address}, because {use.because}")]
        text = f"{use.address} is not an address of this host ({use.because})"
        usable = [one.addresses for one in network.interfaces if one.is_up and not one.is_loopback]
        own = ", ".join(itertools.chain.from_iterable(usable))
        return [fail(IN_USE, text, f"use one of {own}, or unset UNDERTOW_ADDRESS")]
    text = f"{describe(interface, use.address)}, because {use.because}"
    if not interface.is_up:
        return [fail(IN_USE, text, f"bring it up: ip link set {interface.name} up")]
    return [ok(IN_USE, text), *_judge_kind(interface)] if scope.hosts > 1 else [ok(IN_USE, text)]


def _judge_kind(interface: Interface) -> list[Finding]:
    """Warn about an interface that works but is unsuitable for training."""
    other = "if the host has another interface, set UNDERTOW_ADDRESS to its address"
    name, findings = interface.name, []
    if _INNER.match(name):
        text = f"{name} looks like a bridge for containers or virtual machines inside this host"
        findings.append(warn(IN_USE, text, other))
    if _WIRELESS.match(name):
        findings.append(warn(IN_USE, f"{name} looks like a wireless link, which is slow and unsteady", other))
    if 0 < interface.speed_mbit < SLOW_MBIT:
        speed = format_bandwidth(interface.speed_mbit * 1e6)
        text = f"{name} runs at only {speed}"
        findings.append(warn(IN_USE, text, f"check cable and switch port (ethtool {name}); {other}"))
    if interface.mtu < SMALLEST_MTU:
        cure = f"raise it: ip link set {name} mtu 1500"
        findings.append(warn(IN_USE, f"{name} has an MTU of {interface.mtu}, which is very small", cure))
    return findings


def _judge_ports(network: Network, scope: Scope) -> list[Finding]:
    if network.use.error:
        return []
    if network.bind_error:
        text = f"no port can be bound at {network.use.address}: {network.bind_error}"
        return [fail(PORTS, text, "give an address of this host (ip address), or end the process that holds its ports")]
    if network.master_error:
        text = f"port {network.master_port} of the rendezvous cannot be bound: {network.master_error}"
        cure = f"see which process has it (ss -ltnp 'sport = :{network.master_port}'), or give another port"
        return [fail(PORTS, text, cure)]
    words = f"can be bound at {network.use.address}"
    if network.master_port:
        words += f", also {network.master_port} for the rendezvous"
    low, high = network.port_range
    if high and scope.hosts > 1:
        words += f"; workers use ports {low} to {high}, which a firewall between hosts must allow"
    return [ok(PORTS, words)]


def _judge_hostname(network: Network) -> list[Finding]:
    if not any(map(is_loopback, network.hostname_addresses)):
        return []
    where = ", ".join(network.hostname_addresses)
    return [note("host name", f"{network.hostname} is {where} here; undertow does not use it, other programs might")]
