"""How fast and how deep a link is: the rules, as lines for `tc`.

In: a rate.  Out: the token bucket for each end of a link.
Both directions are shaped: what a host sends by its own eth0, what it receives by its port
of the switch.  Nothing here touches the network.
"""

from __future__ import annotations

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


def burst_bytes(rate_bits_per_s: float) -> int:
    """How much may pass at once after a pause."""
    return int(max(BURST_S * rate_bits_per_s / 8, SMALLEST_BURST_BYTES))


def port_queue_bytes(rate_bits_per_s: float) -> int:
    """How much waits at the switch before packets are dropped."""
    return int(max(PORT_QUEUE_S * rate_bits_per_s / 8, SMALLEST_QUEUE_BYTES))


def host_queue_bytes(rate_bits_per_s: float) -> int:
    """How much waits at the sender; it never drops."""
    return max(port_queue_bytes(rate_bits_per_s), HOST_QUEUE_BYTES)


def shape_command(device: str, rate_bits_per_s: float, *, queue_bytes: int) -> str:
    """For `tc`: limit what leaves through this device, whatever limited it before."""
    bucket = f"rate {round(rate_bits_per_s)}bit burst {burst_bytes(rate_bits_per_s)} limit {queue_bytes}"
    return f"qdisc replace dev {device} root tbf {bucket}"


def unshape_command(device: str) -> str:
    """For `tc`: take the limit off again."""
    return f"qdisc del dev {device} root"
