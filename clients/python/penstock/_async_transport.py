from __future__ import annotations

import asyncio
import ssl
from collections import deque
from http.client import HTTPException, IncompleteRead
from typing import Deque, Dict, Optional, Tuple

from ._transport import MAX_IDLE, MAX_RESPONSE, Response, encode, headers_of, parse, parse_address, unavailable
from ._wire import Body

_Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncTransport:
    """Sends requests to the daemon and keeps idle connections, as Transport does, on asyncio's streams.

    The standard library has no asynchronous HTTP client. This one reads what the daemon and proxies
    before it answer a POST: a body with a length, in chunks, or up to the end of the connection.
    """

    def __init__(self, address: str, token: Optional[str], timeout: float, tls: Optional[ssl.SSLContext]) -> None:
        self._url, self._timeout = parse_address(address), timeout
        self._tls = (tls or ssl.create_default_context()) if self._url.scheme == "https" else None
        headers = {"Host": self._url.netloc.rpartition("@")[2], **headers_of(token)}
        if any("\r" in value or "\n" in value for value in headers.values()):
            raise ValueError("a token or an address with a line break")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: Deque[_Connection] = deque()

    async def post(self, path: str, body: Body) -> Response:
        exchange = asyncio.ensure_future(self._exchange(path, encode(body)))
        try:
            # Not wait_for, which before Python 3.12 returns a response although the caller was cancelled meanwhile.
            done, _ = await asyncio.wait([exchange], timeout=self._timeout or None)
            if not done:
                raise asyncio.TimeoutError
            return exchange.result()
        except (OSError, HTTPException, ValueError, EOFError, asyncio.TimeoutError) as error:
            raise unavailable(error) from error
        finally:
            if not exchange.cancel() and not exchange.cancelled():
                exchange.exception()  # nobody waits for it if the caller was cancelled

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def _exchange(self, path: str, encoded: bytes) -> Response:
        reader, writer = await self._connection()
        try:
            target = self._url.path.rstrip("/") + path
            head = f"POST {target} HTTP/1.1\r\n{self._head}Content-Length: {len(encoded)}\r\n\r\n"
            writer.write(head.encode() + encoded)
            await writer.drain()
            status, headers = await _read_head(reader)
            text, ended = await _read_body(reader, headers)
        except BaseException:  # cancelled, too: what is left of the response must not answer another request
            writer.close()
            raise
        ended = ended or _has_unread(reader) or headers.get("connection", "").lower() == "close"
        if ended or len(self._idle) >= MAX_IDLE:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return status, parse(text), headers.get("retry-after")

    async def _connection(self) -> _Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not _has_unread(reader) and not writer.is_closing():
                return reader, writer
            writer.close()
        port = self._url.port or (443 if self._tls else 80)
        return await asyncio.open_connection(self._url.hostname, port, ssl=self._tls)


def _has_unread(reader: asyncio.StreamReader) -> bool:
    """Return whether the daemon has sent more than was asked for, which must not answer another request."""
    return bool(getattr(reader, "_buffer", b""))  # asyncio has no public way to ask


async def _read_head(reader: asyncio.StreamReader) -> Tuple[int, Dict[str, str]]:
    version, _, rest = (await _read_line(reader)).partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise HTTPException("the response is not HTTP")
    headers = {"connection": "close"} if version == "HTTP/1.0" else {}
    while line := await _read_line(reader):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
        if len(headers) > 100:
            raise HTTPException("the response has too many headers")
    return int(rest[:3]), headers


async def _read_body(reader: asyncio.StreamReader, headers: Dict[str, str]) -> Tuple[bytes, bool]:
    """Return the body, and whether the connection has ended with it."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader), False
    if "content-length" in headers:
        return await _read_exactly(reader, int(headers["content-length"])), False
    return await reader.read(MAX_RESPONSE), True


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await _read_line(reader)).partition(";")[0], 16):
        body += await _read_exactly(reader, size, len(body))
        await _read_line(reader)
    while await _read_line(reader):
        pass  # trailers
    return body


async def _read_exactly(reader: asyncio.StreamReader, n: int, before: int = 0) -> bytes:
    if n < 0 or n + before > MAX_RESPONSE:
        raise HTTPException("the response is too long")
    try:
        return await reader.readexactly(n)
    except asyncio.IncompleteReadError as error:
        raise IncompleteRead(error.partial, n) from error


async def _read_line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed")
    return line.decode("latin-1").rstrip("\r\n")
