"""Customers hang up on a gateway on a real ASGI or WSGI server, which pays for what was generated.

Runs against a real daemon, whose address is in PENSTOCK.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import os
import re
import select
import socketserver
import threading
import unittest
import wsgiref.simple_server
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterator, List, Tuple
from urllib.parse import urlsplit
from uuid import uuid4

import penstock
import penstock._client
import uvicorn  # type: ignore[import]
from penstock import Request, RuleRequest
from starlette import applications, requests, responses, routing
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ADDRESS = os.environ["PENSTOCK"]
PATIENCE = 60.0  # detects hangs alone
CLIENT = penstock.Client(ADDRESS, timeout=PATIENCE)
LIMIT = "600/31d"  # of which nothing is available again within a test
BUDGET = 600
ESTIMATE = 400


class Gate:
    """A proxy before the daemon, on a network at its worst for a caller that gives up.

    What it has received of a take reaches the daemon also after the caller has closed the
    connection, and a correction does not. No connection is used twice.
    """

    def __init__(self) -> None:
        self.address = ""
        self.settled = threading.Semaphore(0)
        self.arrived, self.opened = threading.Event(), threading.Event()
        self._held = ("", "")

    def hold(self, path: str, when: str) -> None:
        """Hold the next request, or its answer, until opened."""
        self._held = (path, when)

    def pass_(self, path: str, when: str) -> None:
        if self._held == (path, when):
            self._held = ("", "")
            self.arrived.set()
            assert self.opened.wait(PATIENCE)


@contextmanager
def gate() -> Iterator[Gate]:
    g = Gate()

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            g.pass_(self.path, "request")
            is_take = self.path == "/v1/take" and b"-" not in body.partition(b'"cost":')[2][:3]
            if not is_take and self.is_closed():
                return
            to = http.client.HTTPConnection(urlsplit(ADDRESS).netloc, timeout=PATIENCE)
            to.request("POST", self.path, body, {"Content-Type": "application/json"})
            response = to.getresponse()
            answer = response.read()
            to.close()
            g.pass_(self.path, "answer")
            if self.path == "/v1/settle" and response.status == 200:
                g.settled.release()
            with suppress(ConnectionError):
                self.send_response(response.status)
                self.send_header("Connection", "close")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def is_closed(self) -> bool:
            return bool(select.select([self.connection], [], [], 0)[0])

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    g.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield g
    finally:
        g.opened.set()
        server.shutdown()
        server.server_close()


class Model:
    """Generates tokens up to a number, and then stops until it is told to end."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.generated = tokens, 0
        self.stopped, self.end = asyncio.Event(), asyncio.Event()

    async def __call__(self, prompt: str) -> AsyncIterator[str]:
        while self.generated < self.tokens:
            self.generated += 1
            yield prompt
        self.stopped.set()
        await self.end.wait()


def app_of_the_page(address: str, model: Model) -> Tuple[ASGIApp, penstock.AsyncClient]:
    """Return the program of README.md."""
    page = (Path(__file__).parent.parent / "README.md").read_text()
    (program,) = [p for p in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "starlette" in p]
    names: Dict[str, Any] = {}
    exec(program.replace("http://localhost:8080", address).replace("20000/24h", LIMIT), names)
    names["model"] = model
    return names["app"], names["penstock"]


def app_whose_generator_settles(address: str, model: Model) -> Tuple[ASGIApp, penstock.AsyncClient]:
    client = penstock.AsyncClient(address, timeout=PATIENCE)

    async def complete(request: requests.Request) -> responses.Response:
        estimate = Request(request.headers["x-customer"], LIMIT, cost=ESTIMATE, id=uuid4().hex)
        assert (await client.take(estimate)).allowed

        async def stream() -> AsyncIterator[str]:
            used = 0
            try:
                async for token in model("word"):
                    used += 1
                    yield token
            finally:
                await client.settle(replace(estimate, cost=used))

        return responses.StreamingResponse(stream())

    return applications.Starlette(routes=[routing.Route("/complete", complete)]), client


def cancelling(app: ASGIApp) -> ASGIApp:
    """Return an app that is cancelled wherever it is when the customer hangs up, as by some middleware and servers."""

    async def cancelled(scope: Scope, receive: Receive, send: Send) -> None:
        async def nothing_more() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def hung_up() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        task = asyncio.ensure_future(app(scope, nothing_more, send))
        watch = asyncio.ensure_future(hung_up())
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        watch.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    return cancelled


def slow(app: ASGIApp, after: int, stuck: asyncio.Event) -> ASGIApp:
    """Return an app whose customer no longer reads after so many tokens, and hangs up then."""

    async def slowed(scope: Scope, receive: Receive, send: Send) -> None:
        sent = 0

        async def send_slowly(message: Message) -> None:
            nonlocal sent
            sent += message["type"] == "http.response.body"
            if sent == after:
                stuck.set()
                await asyncio.Event().wait()
            await send(message)

        await app(scope, receive, send_slowly)

    return slowed


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error"))
    if hasattr(server, "install_signal_handlers"):
        server.install_signal_handlers = lambda: None
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def call(port: int, customer: str) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /complete?prompt=word HTTP/1.1\r\nHost: a\r\nX-Customer: {customer}\r\n\r\n".encode())
    return reader, writer


async def event(waiting: threading.Event) -> None:
    assert await asyncio.to_thread(waiting.wait, PATIENCE)


async def soon(waiting: asyncio.Event) -> None:
    await asyncio.wait_for(waiting.wait(), PATIENCE)


App = Callable[[str, Model], Tuple[ASGIApp, penstock.AsyncClient]]
APPS: List[App] = [app_of_the_page, app_whose_generator_settles]
WRAPS: List[Callable[[ASGIApp], ASGIApp]] = [lambda app: app, cancelling]


class HangUpTest(unittest.IsolatedAsyncioTestCase):
    async def hang_up(
        self,
        app: App,
        tokens: int,
        when: Callable[[Gate, Model], Awaitable[None]],
        wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        prepare: Callable[[Gate, Model], None] = lambda gate, model: None,
        then: Callable[[Model], None] = lambda model: None,
    ) -> None:
        """Hang up at a point, and check that what was generated is charged."""
        customer, model = uuid4().hex, Model(tokens)
        with gate() as g:
            prepare(g, model)
            program, client = app(g.address, model)
            async with serving(wrap(program)) as port:
                _, writer = await call(port, customer)
                await asyncio.wait_for(when(g, model), PATIENCE)
                writer.transport.abort()
                then(model)
                if g.arrived.is_set():
                    await asyncio.sleep(0.1)  # for the server to notice; if it takes longer, the test is a weaker one
                    g.opened.set()
                settled = await asyncio.to_thread(g.settled.acquire, True, PATIENCE)
                await client.close()
        charged = BUDGET - CLIENT.peek(Request(customer, LIMIT)).remaining
        self.assertEqual((charged, settled), (tokens, True))

    async def test_hanging_up_before_the_first_token_charges_nothing(self) -> None:
        for app in APPS:
            for wrap in WRAPS:
                with self.subTest(app=app.__name__, wrap=wrap.__name__):
                    await self.hang_up(app, 0, lambda g, model: soon(model.stopped), wrap)

    async def test_hanging_up_in_the_stream_charges_what_was_generated(self) -> None:
        for app in APPS:
            for wrap in WRAPS:
                with self.subTest(app=app.__name__, wrap=wrap.__name__):
                    await self.hang_up(app, 11, lambda g, model: soon(model.stopped), wrap)

    async def test_hanging_up_as_the_stream_ends_charges_all(self) -> None:
        for app in APPS:
            for wrap in WRAPS:
                with self.subTest(app=app.__name__, wrap=wrap.__name__):
                    await self.hang_up(
                        app, 11, lambda g, model: soon(model.stopped), wrap, then=lambda model: model.end.set()
                    )

    async def test_hanging_up_without_reading_charges_what_was_generated(self) -> None:
        # A generator's own finally would wait for the garbage collector here.
        for wrap in WRAPS:
            with self.subTest(wrap=wrap.__name__):
                stuck = asyncio.Event()
                await self.hang_up(app_of_the_page, 7, lambda g, _: soon(stuck), lambda app: wrap(slow(app, 7, stuck)))

    async def test_hanging_up_during_the_take_charges_what_was_generated(self) -> None:
        for when in ("request", "answer"):
            for app in APPS:
                with self.subTest(app=app.__name__, when=when):
                    await self.hang_up(
                        app, 0, lambda g, _: event(g.arrived), prepare=lambda g, _: g.hold("/v1/take", when)
                    )
            with self.subTest(wrap="cancelling", when=when):
                await self.hang_up(
                    app_of_the_page, 0, lambda g, _: event(g.arrived), cancelling, lambda g, _: g.hold("/v1/take", when)
                )

    async def test_hanging_up_during_the_settlement_charges_what_was_generated(self) -> None:
        def prepare(when: str) -> Callable[[Gate, Model], None]:
            def hold(g: Gate, model: Model) -> None:
                g.hold("/v1/settle", when)
                model.end.set()

            return hold

        for when in ("request", "answer"):
            for app in APPS:
                for wrap in WRAPS:
                    with self.subTest(app=app.__name__, wrap=wrap.__name__, when=when):
                        await self.hang_up(app, 11, lambda g, _: event(g.arrived), wrap, prepare(when))


def cancel_after_this(callers: List[asyncio.Future[penstock.Decision]]) -> None:
    """Cancel the first caller after the task that runs has ended, and before those that wait for it go on."""
    this = asyncio.current_task()
    assert this is not None
    this.add_done_callback(lambda _: callers[0].cancel())


class CancelTest(unittest.IsolatedAsyncioTestCase):
    """What cannot be seen from the end of a stream."""

    async def cancelled(self, call: Awaitable[penstock.Decision], at: threading.Event) -> None:
        task = asyncio.ensure_future(call)
        await event(at)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task

    async def test_every_correction_outlives_its_caller_and_close_waits_for_it(self) -> None:
        with gate() as g:
            for verb in ("settle", "settle_all", "refund"):
                for when in ("request", "answer"):
                    request = Request(uuid4().hex, LIMIT, ESTIMATE, id=uuid4().hex)
                    CLIENT.take(request)
                    g.arrived.clear()
                    g.opened.clear()
                    client = penstock.AsyncClient(g.address, timeout=PATIENCE)
                    g.hold("/v1/take" if verb == "refund" else "/v1/settle", when)
                    if verb == "settle_all":
                        call = client.settle_all([replace(request, cost=7, id=None)], id=str(request.id))
                    else:
                        call = getattr(client, verb)(replace(request, cost=7 if verb == "settle" else ESTIMATE))
                    await self.cancelled(call, g.arrived)
                    closing = asyncio.ensure_future(client.close())
                    await asyncio.sleep(0)
                    self.assertFalse(closing.done())
                    g.opened.set()
                    await closing
                    charged = BUDGET - CLIENT.peek(request).remaining
                    self.assertEqual(charged, 0 if verb == "refund" else 7, (verb, when))

    async def test_a_settlement_waits_for_a_take_by_rules_that_was_cancelled(self) -> None:
        request = RuleRequest("shop", [penstock.Descriptor({"team": uuid4().hex})], cost=ESTIMATE, id=uuid4().hex)
        before = CLIENT.peek(request).remaining
        with gate() as g:
            async with penstock.AsyncClient(g.address, timeout=PATIENCE) as client:
                g.hold("/v1/take", "request")
                await self.cancelled(client.take(request, wait=PATIENCE), g.arrived)
                settling = asyncio.ensure_future(client.settle(replace(request, cost=0)))
                await asyncio.sleep(0)
                g.opened.set()
                await settling
        self.assertEqual(CLIENT.peek(request).remaining, before)

    async def test_a_take_that_was_cancelled_is_not_retried(self) -> None:
        request = Request(uuid4().hex, "1/1s", id=uuid4().hex)
        CLIENT.take(replace(request, id=None))
        with gate() as g:
            client = penstock.AsyncClient(g.address, timeout=PATIENCE)
            g.hold("/v1/take", "answer")  # a denial
            await self.cancelled(client.take(request, wait=PATIENCE), g.arrived)
            g.opened.set()
            await client.close()
            with self.assertRaises(penstock.UnknownIDError):
                CLIENT.settle(replace(request, cost=0))

    async def test_a_settlement_that_outlives_its_caller_is_retried(self) -> None:
        request = Request(uuid4().hex, LIMIT, ESTIMATE, id=uuid4().hex)
        CLIENT.take(request)
        with gate() as g:
            client = penstock.AsyncClient("http://127.0.0.1:1", timeout=PATIENCE)  # nobody listens
            task = asyncio.ensure_future(client.settle(replace(request, cost=7), wait=PATIENCE))
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            client._transport._url = urlsplit(g.address)
            await client.close()
        self.assertEqual(BUDGET - CLIENT.peek(request).remaining, 7)

    async def test_a_caller_that_is_cancelled_as_the_response_arrives_is_cancelled(self) -> None:
        for fails in (False, True):
            for verb in ("take", "peek", "settle", "refund"):
                for id in (None, "a"):
                    with self.subTest(verb=verb, id=id, fails=fails):
                        unseen: List[Any] = []
                        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
                        client = penstock.AsyncClient(timeout=PATIENCE)
                        callers: List[asyncio.Future[penstock.Decision]] = []

                        async def exchange(path: str, encoded: bytes) -> Any:
                            await asyncio.sleep(0)
                            cancel_after_this(callers)
                            if fails:
                                raise ConnectionResetError
                            return 200, {"allowed": True, "granted": 1, "limit": 1, "remaining": 0}, None

                        client._transport._exchange = exchange  # type: ignore[assignment]
                        callers.append(asyncio.ensure_future(getattr(client, verb)(Request("k", LIMIT, id=id))))
                        with self.assertRaises(asyncio.CancelledError):
                            await callers[0]
                        await client.close()
                        gc.collect()
                        self.assertEqual(unseen, [])

    async def test_a_settlement_that_fails_as_its_caller_is_cancelled_is_told(self) -> None:
        client = penstock.AsyncClient("http://127.0.0.1:1", timeout=PATIENCE)  # nobody listens
        callers: List[asyncio.Future[penstock.Decision]] = []
        steps = client._steps

        async def last_steps(*args: Any) -> penstock.Decision:
            cancel_after_this(callers)
            return await steps(*args)

        client._steps = last_steps  # type: ignore[assignment]
        with self.assertLogs("penstock") as logs:
            callers.append(asyncio.ensure_future(client.settle(Request("k", LIMIT, id="a"))))
            with self.assertRaises(asyncio.CancelledError):
                await callers[0]
            await client.close()
        self.assertIn("stays charged", logs.output[0])

    async def test_a_crowd_that_hangs_up_is_bounded_and_what_fails_is_told(self) -> None:
        most, penstock._client._MOST_ORPHANS = penstock._client._MOST_ORPHANS, 2
        request = Request(uuid4().hex, LIMIT)
        try:
            with self.assertLogs("penstock") as logs:
                client = penstock.AsyncClient("http://127.0.0.1:1", timeout=PATIENCE)
                tasks = [asyncio.ensure_future(client.settle(replace(request, id=str(i)), wait=0.2)) for i in range(3)]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await client.close()
        finally:
            penstock._client._MOST_ORPHANS = most
        told = [("given up" in line, "stays charged" in line) for line in logs.output]
        self.assertEqual(told, [(True, False), (False, True), (False, True)])


class LoopTest(unittest.TestCase):
    def test_what_the_end_of_the_loop_gives_up_is_told(self) -> None:
        async def hung_up(client: penstock.AsyncClient) -> None:
            with gate() as g:
                client._transport._url = urlsplit(g.address)
                g.hold("/v1/settle", "request")
                task = asyncio.ensure_future(client.settle(Request("k", LIMIT, id=uuid4().hex)))
                await event(g.arrived)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        client = penstock.AsyncClient(timeout=PATIENCE)
        with self.assertLogs("penstock") as logs:
            asyncio.run(hung_up(client))
        self.assertIn("with the event loop", logs.output[0])
        self.assertFalse(client._orphans)


class ThreadsTest(unittest.TestCase):
    def test_a_wsgi_server_that_closes_the_generator_settles(self) -> None:
        for tokens in (0, 11):
            customer, stopped, hung_up = uuid4().hex, threading.Event(), threading.Event()
            with gate() as g, penstock.Client(g.address, timeout=PATIENCE) as client:

                def app(environ: Any, start_response: Any) -> Iterator[bytes]:
                    estimate = Request(customer, LIMIT, cost=ESTIMATE, id=uuid4().hex)
                    used = 0
                    try:
                        assert client.take(estimate).allowed
                        start_response("200 OK", [])
                        while used < tokens:
                            used += 1
                            yield b"word"
                        stopped.set()
                        assert hung_up.wait(PATIENCE)
                        while True:
                            yield b"\n" * 65536
                    finally:
                        client.settle(replace(estimate, cost=used))

                with wsgi(app) as port:
                    connection = http.client.HTTPConnection("127.0.0.1", port)
                    connection.request("GET", "/")
                    self.assertTrue(stopped.wait(PATIENCE))
                    connection.close()
                    hung_up.set()
                    self.assertTrue(g.settled.acquire(True, PATIENCE))
            self.assertEqual(BUDGET - CLIENT.peek(Request(customer, LIMIT)).remaining, tokens)


@contextmanager
def wsgi(app: Any) -> Iterator[int]:
    class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
        daemon_threads = True

    class Handler(wsgiref.simple_server.WSGIRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def get_stderr(self) -> Any:
            return open(os.devnull, "w")

    with wsgiref.simple_server.make_server("127.0.0.1", 0, app, Server, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


if __name__ == "__main__":
    unittest.main()
