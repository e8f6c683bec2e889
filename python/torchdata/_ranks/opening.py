"""Connects ranks: rank 0 publishes its addresses in the job's store, and all other ranks connect to rank 0.

Requests to the store run in a separate thread, because a request never returns if the store's process is stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torchdata._handlers import FailuresSuppressed, raise_if_of_handler
from torchdata._native import Meeting
from torchdata._ranks.group import PrefetchTimeoutError, RanksLostError, describe_ranks
from torchdata._threads import start

#: The reason for giving up, the affected ranks, and the rank that gave up.
Blame = tuple[str, list[int], int]

#: The shortest and the longest pause in seconds between two requests for rank 0's addresses.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05

#: The number of seconds to connect to one address and receive an answer.
_ATTEMPT = 3.0

_LOOPBACK = ("127.0.0.1", "::1")


class Opening:
    """Connects the ranks in `members`, which are numbered as in the job."""

    def __init__(self, dist: Any, prefix: str, members: Sequence[int], timeout: float, owner: str) -> None:
        self._dist, self._prefix, self._timeout = dist, prefix, timeout
        self._members, self._job_size = members, dist.get_world_size()
        self._rank, self._size = members.index(dist.get_rank()), len(members)
        self._name = f"{owner} on rank {members[self._rank]}"
        self._until = time.monotonic() + timeout

    @property
    def _left(self) -> float:
        return max(self._until - time.monotonic(), 0.0)

    def meet(self) -> tuple[Meeting | Blame, float]:
        """Returns the `Meeting` (or the reason why rank 0 has given up), and the seconds that remain for connecting.

        Raises PrefetchTimeoutError if rank 0 did not begin to iterate in time, and RanksLostError if the store or rank
        0 does not answer.
        """
        meeting = self._host() if self._rank == 0 else self._join()
        return meeting, self._left

    def give_up(self, blame: Blame) -> None:
        """Writes the reason `blame` to the store, so that ranks that try to connect later give up, too."""
        with suppress(RanksLostError):
            self._ask_store(lambda store: store.set("blame", json.dumps(blame)))

    def agree(self, key: str, value: str) -> str:
        """Returns, on every rank, the value of the first rank that calls this method for `key`."""
        return str(self._ask_store(lambda store: store.compare_set(key, "", value)).decode())

    def _host(self) -> Meeting:
        secret = os.urandom(32)
        listener, offer = _listen(_host_of(self._dist))
        with listener:
            if self._size > 1:
                offer["secret"] = secret.hex()
                listener.listen(max(128, self._size))
                self._ask_store(lambda store: self._offer(store, json.dumps(offer)))
            return Meeting.host(listener.detach(), self._size, secret[:16], secret[16:])

    def _offer(self, store: Any, offer: str) -> None:
        store.set("begun/0", "")
        store.set("hub", offer)

    def _join(self) -> Meeting | Blame:
        offer = self._ask_store(self._look_for_hub)
        if isinstance(offer, list):
            absent = describe_ranks(self._members[rank] for rank in offer)
            raise PrefetchTimeoutError(
                self._timeout,
                f"{self._name}: {absent} of {self._job_size} did not begin to iterate within {self._timeout:g} s: it "
                f"is busy or has exited; raise the timeout if such delays are normal",
            )
        secret = bytes.fromhex(offer["secret"])
        addresses = _addresses_to_try(offer, _host_of(self._dist))
        attempts: list[str] = []
        while True:
            attempts.clear()
            for address in addresses:
                patience = min(self._left + Meeting.WATCH, _ATTEMPT)
                try:
                    with socket.create_connection((address, offer["port"]), patience) as connection:
                        return Meeting.join(connection.detach(), self._rank, secret[:16], secret[16:], patience)
                except OSError as error:
                    raise_if_of_handler(error)
                    attempts.append(f"{address}: {error.strerror or error}")
                if not self._left:
                    break
            with suppress(RanksLostError):
                blame = self._ask_store(lambda store: store.check(["blame"]) and json.loads(store.get("blame")))
                if blame:
                    what, ranks, by = blame
                    return what, ranks, by
            if time.monotonic() > self._until + Meeting.WATCH:  # rank 0 gives up at about the same time
                hub = f"rank {self._members[0]} of {self._job_size}"
                raise RanksLostError(
                    f"{self._name}: {hub}, which all other ranks connect to, did not reply within "
                    f"{self._timeout:g} s ({'; '.join(attempts)}, port {offer['port']}): it has exited or was "
                    f"stopped, or the two machines do not share a network; on that rank, GLOO_SOCKET_IFNAME names "
                    f"the interface to use"
                )
            time.sleep(_LONGEST_PAUSE)

    def _look_for_hub(self, store: Any) -> dict[str, Any] | list[int]:
        """Waits until rank 0 has written its addresses into the store, and returns them. After the timeout, returns the
        ranks that have not begun to iterate."""
        store.set(f"begun/{self._rank}", "")
        pause = _FIRST_PAUSE
        while not store.check(["hub"]):
            if not self._left:
                absent = [rank for rank in range(self._size) if not store.check([f"begun/{rank}"])]
                return absent or [0]
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        offer: dict[str, Any] = json.loads(store.get("hub"))
        return offer

    def _ask_store(self, ask: Callable[[Any], Any]) -> Any:
        """Calls `ask` with the job's store, and returns the result. The store must answer within `Meeting.WATCH`
        seconds after the timeout."""
        answers: list[Any] = []

        def run() -> None:
            try:
                from torch.distributed import distributed_c10d

                store: Any = distributed_c10d._get_default_store()
                if hasattr(store, "clone"):
                    store = store.clone()  # the clone does not wait for other users of the store
                answers.append(ask(self._dist.PrefixStore(self._prefix, store)))
            except Exception as error:
                answers.append(error)

        thread = threading.Thread(target=run, name="torchdata-store", daemon=True)
        start(thread)
        thread.join(self._left + Meeting.WATCH)
        if answers and not isinstance(answers[0], Exception):
            return answers[0]
        why = f"failed ({answers[0]})" if answers else f"sent no reply within {self._timeout:g} s"
        raise RanksLostError(
            f"{self._name}: the store of the job {why}; the process of the store has exited or was stopped, or this "
            f"rank cannot reach it: {_holder_of_store()}"
        )


def _holder_of_store() -> str:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "torchrun's agent on the machine of rank 0"
    return "rank 0, unless the program creates its store in another process"


def _host_of(dist: Any) -> str | None:
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host: str | None = getattr(store, "host", None)
    return host


def _listen(store_host: str | None) -> tuple[socket.socket, dict[str, Any]]:
    """Returns the listening socket of rank 0, and its addresses. The socket is bound to a single address if all ranks
    can reach this address."""
    listener = _listen_at(store_host)
    if listener is not None:
        addresses = [listener.getsockname()[0]]
    else:
        dual = socket.has_dualstack_ipv6()
        listener = socket.create_server(
            ("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual
        )
        addresses = _own_addresses(store_host)
    address, port, *_ = listener.getsockname()
    return listener, {"addresses": addresses, "port": port, "is_anywhere": address in ("0.0.0.0", "::")}


def _listen_at(store_host: str | None) -> socket.socket | None:
    """Returns a socket at one address that all ranks can reach; None if no such address is known."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return socket.create_server((_address_of_interface(interface), 0))
    # A loopback address suffices if the store's host has a loopback name, because all ranks then run on this machine.
    if _is_loopback(store_host):
        return _server_at(_LOOPBACK[1] if store_host == _LOOPBACK[1] else _LOOPBACK[0])
    towards = next(iter(_addresses_towards(store_host)), None) if store_host is not None else None
    return None if towards is None or _is_loopback(towards) else _server_at(towards)


def _server_at(address: str) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with FailuresSuppressed(OSError):  # raised if the machine lacks the address family
        return socket.create_server((address, 0), family=family)
    return None


def _is_loopback(host: str | None) -> bool:
    """Returns whether a host name is a loopback name. The store's host has a loopback name only if all ranks run on one
    machine."""
    return host is not None and (host.lower() == "localhost" or host in _LOOPBACK or host.startswith("127."))


def _addresses_towards(host: str | None) -> list[str]:
    """Returns the source addresses of packets from this machine to `host`."""
    found: list[str] = []
    with FailuresSuppressed(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with FailuresSuppressed(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # connecting a UDP socket sends nothing
                found.append(probe.getsockname()[0])
    return found


def _address_of_interface(name: str) -> str:
    """Returns the IPv4 address of a network interface, and raises RuntimeError if the interface lacks an IPv4
    address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # SIOCGIFADDR (see netdevice(7)) takes the interface's name in 16 bytes, and appends the address.
            answer = fcntl.ioctl(probe, 0x8915, struct.pack("16s16x8x", name.encode()[:15]))
        except OSError as error:
            raise RuntimeError(
                f"GLOO_SOCKET_IFNAME names the network interface {name!r}, which has no IPv4 address here: "
                f"{error.strerror}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _own_addresses(store_host: str | None) -> list[str]:
    """Returns the addresses of this machine, beginning with the address that other ranks can most likely reach."""
    found = _addresses_towards(store_host)  # all ranks have reached the store's machine
    with FailuresSuppressed(OSError):
        found += [entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)]  # type: ignore[misc]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.") and address != "::1"]


def _addresses_to_try(offer: dict[str, Any], store_host: str | None) -> list[str]:
    """Returns the addresses of rank 0, beginning with the address that other ranks can most likely reach. The name of
    the store's machine is one of the addresses, because rank 0 often runs on the store's machine, and all machines know
    its name. Loopback addresses are last, for ranks on one machine without a network.
    """
    if not offer["is_anywhere"]:
        return list(offer["addresses"])
    return [*offer["addresses"], *([] if store_host is None else [store_host]), *_LOOPBACK]
