"""Checks that links reach their nominal rate before the lab reports any figure.

In: a network, the rate it was shaped to.  Out: the worst ratio of measured to nominal, or a `LabError`.
Measures the links of a ring one at a time, so that only one pair of hosts uses the machine's cores.
The load is plain TCP; the kernel's counters at the receiver's port give the bytes that arrived.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from undertow.engine.wire.streams import discard_unsent
from undertow.errors import LabError
from undertow.plan.cluster import PAYLOAD_SHARE
from undertow.progress import SILENT, Progress
from undertow.tools.lab.network import Counters, Host, Network
from undertow.units import format_bandwidth, format_percent

TOLERANCE = 0.05
# A busy machine looks like a slow link for a moment; a slow link fails every check.
CHECKS = 3
# With fewer bits than this, a single packet would matter: slow links are measured for longer.
MEASURE_BITS = 4e6
# By then slow start is over, and the tokens that the idle buckets had collected are used up.
WARM_UP_S = 0.15
# A loss in slow start, or another process on our cores, is temporary; a bad link stays bad for longer.
MEASURE_S = (0.4, 1.0, 2.0, 2.0, 2.0)
# Load on the machine slows a link, but not below this twice in a row: then the machine is too slow for the rate.
HOPELESS, HOPELESS_TRIES = 0.2, 2
CHUNK_BYTES = 1 << 18
CONNECT_S = 10.0
# A reading of the counters that took longer than this was interrupted: its time is too uncertain.
PROMPT_S = 0.0005
READINGS = 20
# On the slowest links a packet takes several milliseconds.
SILENCE_S = 0.03
SILENCE_CHECKS = 50


@dataclass(frozen=True)
class Measurement:
    """Measured rate of one link in one direction."""

    sender: int
    receiver: int
    payload_bits_per_s: float

    def ratio(self, rate_bits_per_s: float) -> float:
        """Return the measured rate as a fraction of what TCP can reach on a link of this rate."""
        return self.payload_bits_per_s / (rate_bits_per_s * PAYLOAD_SHARE)


def check_links(network: Network, rate_bits_per_s: float, progress: Progress = SILENT) -> float:
    """Measure every link in both directions, and return the ratio furthest from 1.  Progress advances once per link."""
    count = len(network.hosts)
    if not network.is_shaped or count < 2:
        return 1.0
    ratios = [1.0]
    for index in range(count):
        best = _measure_with_retries(network, (index, (index + 1) % count), rate_bits_per_s)
        if complaint := find_fault(best, rate_bits_per_s):
            raise LabError(complaint)
        ratios.append(best.ratio(rate_bits_per_s))
        progress.advance()
    _wait_for_silence(network)
    return max(ratios, key=lambda ratio: abs(ratio - 1))


def shape_links(network: Network, rate_bits_per_s: float) -> None:
    """Limit all links to this rate, and check them.  Raises `LabError` if every check fails."""
    network.shape(rate_bits_per_s)
    for number in range(CHECKS):
        try:
            check_links(network, rate_bits_per_s)
            return
        except LabError:
            if number == CHECKS - 1:
                raise


def find_fault(measured: Measurement, rate_bits_per_s: float) -> str | None:
    """Describe what is wrong with a link; None if its rate is within the tolerance."""
    ratio = measured.ratio(rate_bits_per_s)
    if abs(ratio - 1) <= TOLERANCE:
        return None
    # Like the requested rate, both include headers.
    carried, nominal = format_bandwidth(ratio * rate_bits_per_s), format_bandwidth(rate_bits_per_s)
    what = f"the link from host {measured.sender} to host {measured.receiver} carries {carried} instead of {nominal}"
    cure = "Use a lower --bandwidth on this machine (or, for a bench, a higher --scale)."
    if ratio > 1:
        cure = "Its shaping has no effect: check whether another program changes the network."
    return f"{what} ({format_percent(ratio, 1)}): figures from it would be wrong. {cure}"


def measure_link(network: Network, link: tuple[int, int], *, duration_s: float) -> Measurement:
    """Measure the rate at which the second host receives while the first sends as fast as it can."""
    sender, receiver = link
    with _traffic(network.hosts[sender], network.hosts[receiver]):
        time.sleep(WARM_UP_S)
        before_s, before = _read(network, receiver)
        time.sleep(duration_s)
        after_s, after = _read(network, receiver)
    payload_bytes = after.payload_in - before.payload_in
    return Measurement(sender, receiver, payload_bytes * 8 / (after_s - before_s))


def _measure_with_retries(network: Network, link: tuple[int, int], rate_bits_per_s: float) -> Measurement:
    """Measure for longer and longer until one result is good enough; return the best."""
    tries: list[Measurement] = []
    for duration_s in MEASURE_S:
        duration_s = max(duration_s, MEASURE_BITS / rate_bits_per_s)
        tries.append(measure_link(network, link, duration_s=duration_s))
        if find_fault(tries[-1], rate_bits_per_s) is None or _is_hopeless(tries, rate_bits_per_s):
            break
    return min(tries, key=lambda measured: abs(measured.ratio(rate_bits_per_s) - 1))


def _is_hopeless(tries: Sequence[Measurement], rate_bits_per_s: float) -> bool:
    return len(tries) >= HOPELESS_TRIES and all(one.ratio(rate_bits_per_s) < HOPELESS for one in tries)


def _wait_for_silence(network: Network) -> None:
    """Wait until the queues are empty: packets of this measurement must not count in the next."""
    for _ in range(SILENCE_CHECKS):
        before = network.counters()
        time.sleep(SILENCE_S)
        if network.counters() == before:
            return


def _read(network: Network, index: int) -> tuple[float, Counters]:
    """Read a host's counters; return the time of the reading, and the counters."""
    readings = []
    for _ in range(READINGS):
        start_s = time.perf_counter()
        counters = network.counters()[index]
        took_s = time.perf_counter() - start_s
        readings.append((took_s, start_s + took_s / 2, counters))
        if took_s <= PROMPT_S:
            break
    _, at_s, counters = min(readings, key=lambda reading: reading[0])
    return at_s, counters


@contextmanager
def _traffic(sender: Host, receiver: Host) -> Iterator[None]:
    """Saturate one connection inside the block."""
    outgoing, incoming = _connect(sender, receiver)
    threads = [
        threading.Thread(target=task, args=[sock], daemon=True)
        for task, sock in ((_pump, outgoing), (_drain, incoming))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for sock in (outgoing, incoming):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # unblocks its thread
        for thread in threads:
            thread.join()
        for sock in (outgoing, incoming):
            sock.close()


def _connect(sender: Host, receiver: Host) -> tuple[socket.socket, socket.socket]:
    """Connect two hosts, and return both ends."""
    with receiver.entered(), socket.create_server((receiver.address, 0)) as listener:
        where = listener.getsockname()
        try:
            with sender.entered():
                outgoing = socket.create_connection(where, timeout=CONNECT_S)
        except OSError as error:
            raise LabError(f"host {sender.index} cannot connect to host {receiver.index}: {error}") from None
        incoming, _ = listener.accept()
    outgoing.settimeout(None)
    discard_unsent(outgoing)
    return outgoing, incoming


def _pump(sock: socket.socket) -> None:
    data = bytes(CHUNK_BYTES)
    try:
        while True:
            sock.sendall(data)
    except OSError:
        pass  # the measurement is over


def _drain(sock: socket.socket) -> None:
    buffer = bytearray(CHUNK_BYTES)
    try:
        while sock.recv_into(buffer):
            pass
    except OSError:
        pass
