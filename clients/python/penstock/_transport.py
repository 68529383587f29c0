from __future__ import annotations

import http.client
import json
import selectors
import ssl
from collections import deque
from typing import Any, Deque, Optional, Tuple
from urllib.parse import urlsplit

from ._errors import InvalidRequestError, UnavailableError
from ._wire import Body

_MAX_RESPONSE = 1 << 20
_MAX_BODY = 64 << 10
_MAX_IDLE = 16


class Transport:
    """Sends requests to the daemon and keeps idle connections. Threads may share it.

    It follows no redirects: the token is for the daemon alone.
    """

    def __init__(self, address: str, token: Optional[str], timeout: float, tls: Optional[ssl.SSLContext]) -> None:
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"address {address!r}: want http://HOST:PORT or https://HOST:PORT")
        self._url, self._prefix, self._timeout, self._tls = url, url.path.rstrip("/"), timeout, tls
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle: Deque[http.client.HTTPConnection] = deque()

    def post(self, path: str, body: Body) -> Tuple[int, Any, Optional[str]]:
        """Return the status, the body if it is JSON, and the header Retry-After."""
        encoded = json.dumps(body).encode()
        if len(encoded) > _MAX_BODY:
            # The daemon closes the connection on more, which would look as if it were unavailable:
            # then a long key, which a user may choose, would pass a client that fails open.
            raise InvalidRequestError(f"the request has {len(encoded)} bytes: want at most {_MAX_BODY}")
        connection = self._connection()
        try:
            connection.request("POST", self._prefix + path, encoded, self._headers)
            response = connection.getresponse()
            text = response.read(_MAX_RESPONSE)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = str(error) or type(error).__name__
            raise UnavailableError(f"penstock unavailable: {reason}") from error
        self._keep(connection, response)
        return response.status, _parse(text), response.getheader("Retry-After")

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
        if response.isclosed() and connection.sock is not None and len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # an error page of a proxy
