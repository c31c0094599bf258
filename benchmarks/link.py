"""A network between processes of one machine: two network namespaces and a link of a given rate."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from qmaps.errors import BadValueError


@contextmanager
def link(rate: str) -> Iterator[list[tuple[list[str], dict[str, str]]]]:
    """Two hosts joined by a link; they exist inside the context.

    Args:
        rate: rate of each direction, in the syntax of ``tc``, as in "1gbit".

    Yields:
        For each host, the first words of a command line there, and the environment for gloo.

    Raises:
        BadValueError: ``ip`` or ``tc`` of iproute2 is missing, or refuses; they need Linux, root
            and the kernel's ``tbf`` queue.
    """
    if not (shutil.which("ip") and shutil.which("tc")):
        raise BadValueError("--link needs ip and tc, of Debian's package iproute2")
    hosts = first, second = [f"qmaps{os.getpid()}{letter}" for letter in "ab"]
    try:
        for host in hosts:
            _do("ip", "netns", "add", host)
        _do("ip", "link", "add", first, "netns", first, "type", "veth", "peer", "name", second,
            "netns", second)  # fmt: skip
        for number, host in enumerate(hosts, 1):
            inside = ("ip", "netns", "exec", host)
            _do(*inside, "ip", "address", "add", f"10.77.0.{number}/24", "dev", host)
            for device in (host, "lo"):
                _do(*inside, "ip", "link", "set", device, "up")
            _do(*inside, "tc", "qdisc", "add", "dev", host, "root", "tbf", "rate", rate,
                "burst", "256kb", "latency", "50ms")  # fmt: skip
        yield [
            (["ip", "netns", "exec", host], os.environ | {"GLOO_SOCKET_IFNAME": host})
            for host in hosts
        ]
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BadValueError(f"--link: {' '.join(command)!r} failed and said: {said}")
