"""Downloading of images, by default from public addresses only.

The address is checked after the name is resolved, and the connection goes to that very address,
so that neither a name nor a redirect leads into a private network.
"""

from __future__ import annotations

import copy
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from typing import Self, TypeAlias
from urllib.parse import urljoin, urlsplit

from ..arguments import check_str, check_uint
from .errors import ImageError, not_fetched, too_large

DestinationFilter: TypeAlias = Callable[[str, str], bool]
MAX_IMAGE_BYTES = 32 << 20
_MAX_REDIRECTS = 10
_TIMEOUT_S = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK_BYTES = 1 << 16
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public_address(host: str, address: str) -> bool:
    """Return whether an address is one of the public internet."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        embedded = _embedded_ipv4(parsed)
        if embedded is None and parsed not in _GLOBAL_UNICAST:
            return False
        parsed = embedded or parsed
    return parsed.is_global and not parsed.is_multicast


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the address that a mapped, translated (NAT64) or tunneled (6to4) one leads to."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class ReqwestImageFetcher:
    """Downloads images. The name is that of the original's; the work is the standard library's.

    Without another filter it connects to public addresses only. No proxy is used.
    """

    def __init__(self) -> None:
        self._max_bytes = MAX_IMAGE_BYTES
        self._filter: DestinationFilter = is_public_address

    @staticmethod
    def with_max_bytes(max_bytes: int) -> ReqwestImageFetcher:
        """Return a fetcher that refuses larger bodies."""
        fetcher = ReqwestImageFetcher()
        fetcher._max_bytes = check_uint("max_bytes", max_bytes, 64)
        return fetcher

    def with_destination_filter(self, destination_filter: DestinationFilter) -> Self:
        """Return a fetcher that connects where `destination_filter(host, address)` is True.

        The filter sees each resolved address of the URL's host and of each redirect. One that
        raises or returns no bool refuses.

        Raises:
            TypeError: the filter is not callable.
        """
        if not callable(destination_filter):
            raise TypeError("destination_filter must be callable")
        fetcher = copy.copy(self)
        fetcher._filter = destination_filter
        return fetcher

    def fetch(self, url: str) -> bytes:
        """Return the body behind a URL. Blocks up to 30 seconds.

        Raises:
            ImageError: the download fails, or the address or the size is refused.
        """
        try:
            return self.download(check_str("url", url))
        except ImageError as error:
            raise error.at("image[0]") from error

    def download(self, url: str) -> bytes:
        """As `fetch`; the error names no place."""
        deadline = time.monotonic() + _TIMEOUT_S
        target = url
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                location, body = self._request(url, target, deadline)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise not_fetched(url, "Fetch", is_retryable=True) from error
            if location is None:
                return body
            target = urljoin(target, location)
        raise not_fetched(url, "Fetch", is_retryable=True)

    def _request(self, url: str, target: str, deadline: float) -> tuple[str | None, bytes]:
        """Return the location of a redirect, or None and the body."""
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"no address to connect to in {target!r}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        connection = self._connect(url, parts.hostname, port, parts.scheme == "https", deadline)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "image/*"})
            with connection.getresponse() as response:
                location = response.getheader("Location")
                if response.status in _REDIRECTS and location is not None:
                    return location, b""
                if response.status != 200:
                    is_retryable = response.status >= 500
                    raise not_fetched(url, "FetchStatus", is_retryable=is_retryable)
                return None, self._read(response, deadline)
        finally:
            connection.close()

    def _connect(
        self, url: str, host: str, port: int, is_tls: bool, deadline: float
    ) -> http.client.HTTPConnection:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in found]
        allowed = [address for address in addresses if self._allows(host, address)]
        if not allowed:
            raise not_fetched(url, "DestinationRejected", is_retryable=False)
        timeout = max(0.1, deadline - time.monotonic())
        raw = socket.create_connection((allowed[0], port), timeout)
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
        try:
            tls = ssl.create_default_context() if is_tls else None
            connection.sock = tls.wrap_socket(raw, server_hostname=host) if tls else raw
        except OSError:
            raw.close()
            raise
        return connection

    def _allows(self, host: str, address: str) -> bool:
        try:
            return self._filter(host, address) is True
        except Exception:  # the filter is the caller's; one that fails must not let through
            return False

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        body = bytearray()
        while chunk := response.read(_CHUNK_BYTES):
            body += chunk
            if len(body) > self._max_bytes:
                raise too_large(self._max_bytes)
            if time.monotonic() > deadline:
                raise TimeoutError("the download takes too long")
        return bytes(body)
