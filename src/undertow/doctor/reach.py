"""What became of an attempt to connect, and what that says about the way between two hosts.

In: an error of the system, or none.  Out: a `Reach`, its words and what to do.
`try_host` connects; the rest is pure.
"""

from __future__ import annotations

import enum
import errno
import socket

from undertow.errors import Refused

CONNECT_S = 3.0  # one lost packet is sent again after one second, a second one after three


class Reach(enum.Enum):
    REACHED = "reached"
    REFUSED = "refused"  # the host answers, but nothing listens there
    SILENT = "silent"  # nobody answers
    NO_ROUTE = "no route"
    FORBIDDEN = "forbidden"  # by this host's own rules
    UNKNOWN = "unknown name"
    STRANGER = "stranger"  # something listens that is not ours, or has another token
    FAILED = "failed"
    NOT_TRIED = "not tried"


_BY_NUMBER = {
    errno.ECONNREFUSED: Reach.REFUSED,
    errno.ETIMEDOUT: Reach.SILENT,
    errno.EHOSTUNREACH: Reach.NO_ROUTE,
    errno.ENETUNREACH: Reach.NO_ROUTE,
    errno.EADDRNOTAVAIL: Reach.NO_ROUTE,
    errno.EINVAL: Reach.FORBIDDEN,  # what a blackhole route gives
    errno.EACCES: Reach.FORBIDDEN,
    errno.EPERM: Reach.FORBIDDEN,
}
WORDS = {
    Reach.REFUSED: "the connection is refused at once",
    Reach.SILENT: f"nobody answers within {CONNECT_S:g} s",
    Reach.NO_ROUTE: "there is no route to it, or no host answers at that address",
    Reach.FORBIDDEN: "the dialling host's own rules forbid the connection",
    Reach.UNKNOWN: "the name is not known here",
    Reach.STRANGER: "what listens there does not know the token",
    Reach.FAILED: "the connection fails",
    Reach.NOT_TRIED: "it was not tried",
}


def classify(error: Exception) -> Reach:
    if isinstance(error, Refused):
        return Reach.STRANGER
    if isinstance(error, socket.gaierror | UnicodeError):
        return Reach.UNKNOWN
    if isinstance(error, TimeoutError) and error.errno is None:
        return Reach.SILENT
    return _BY_NUMBER.get(getattr(error, "errno", None) or 0, Reach.FAILED)


def try_host(host: str, port: int) -> Reach:
    """What a plain connection to it comes to; nothing is sent."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        return classify(error)
    return Reach.REACHED


def explain_absence(reach: Reach, name: str, port: int) -> tuple[str, str]:
    """Why a host that did not come may be absent, and what to do; as seen from here."""
    match reach:
        case Reach.REFUSED:
            text = f"it is up and can be reached, but nothing listens at port {port} there"
            cure = f"type the same command on {name}; if you did, see what it says: it may have another UNDERTOW_TOKEN"
        case Reach.REACHED | Reach.STRANGER:
            text = f"something listens at port {port} there"
            cure = f"see what {name} says; it may have another token, or other --hosts"
        case Reach.SILENT:
            text = f"{WORDS[reach]}: it is down, or a firewall drops packets"
            cure = f"see whether {name} is up; if it is, open its firewall for this host"
        case Reach.UNKNOWN:
            text, cure = WORDS[reach], f"correct the name, add {name} to /etc/hosts, or give its IP address"
        case Reach.NO_ROUTE:
            text, cure = WORDS[reach], f"see whether {name} is up and in this network (ip route get {name})"
        case Reach.FORBIDDEN:
            text, cure = WORDS[reach], "see its firewall and routes (nft list ruleset, ip route)"
        case _:
            text, cure = WORDS[reach], f"see whether {name} is up, and its firewall"
    return text, cure
