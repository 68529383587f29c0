from __future__ import annotations

import http.client
import json
import selectors
import ssl
from collections import deque
from typing import Any, Deque, Dict, Optional, Tuple
from urllib.parse import SplitResult, urlsplit

from ._errors import InvalidRequestError, UnavailableError
from ._wire import Body

MAX_RESPONSE = 1 << 20
_MAX_BODY = 64 << 10
MAX_IDLE = 16


Response = Tuple[int, Any, Optional[str]]  # the status, the body if it is JSON, and Retry-After


class Transport:
    """Sends requests to the daemon and keeps idle connections. Threads may share it.

    It follows no redirects: the token is for the daemon alone.
    """

    def __init__(self, address: str, token: Optional[str], timeout: float, tls: Optional[ssl.SSLContext]) -> None:
        self._url, self._timeout, self._tls = parse_address(address), timeout, tls
        self._headers = headers_of(token)
        self._idle: Deque[http.client.HTTPConnection] = deque()

    def post(self, path: str, body: Body) -> Response:
        encoded = encode(body)
        connection = self._connection()
        try:
            connection.request("POST", self._url.path.rstrip("/") + path, encoded, self._headers)
            response = connection.getresponse()
            text = response.read(MAX_RESPONSE)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise unavailable(error) from error
        self._keep(connection, response)
        return response.status, parse(text), response.getheader("Retry-After")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> http.client.HTTPConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if not _is_readable(connection):
                return connection
            connection.close()  # the daemon has closed it, or sent what was not asked for

    def _connect(self) -> http.client.HTTPConnection:
        host, port = str(self._url.hostname), self._url.port
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.isclosed() and connection.sock is not None and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


def parse_address(address: str) -> SplitResult:
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"address {address!r}: want http://HOST:PORT or https://HOST:PORT")
    return url


def headers_of(token: Optional[str]) -> Dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def encode(body: Body) -> bytes:
    encoded = json.dumps(body).encode()
    if len(encoded) > _MAX_BODY:
        # The daemon closes the connection on more, which would look as if it were unavailable:
        # then a long key, which a user may choose, would pass a client that fails open.
        raise InvalidRequestError(f"the request has {len(encoded)} bytes: want at most {_MAX_BODY}")
    return encoded


def unavailable(error: BaseException) -> UnavailableError:
    return UnavailableError(f"penstock unavailable: {str(error) or type(error).__name__}")


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # an error page of a proxy
