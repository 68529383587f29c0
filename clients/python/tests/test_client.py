"""Runs against a real daemon, whose address is in PENSTOCK.

The program that starts this one also kills and starts the daemon: a line "kill" or "start" on
standard output asks for it, and an empty line on standard input says that it is done.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, AsyncIterator, Dict, Iterator, List, Tuple
from urllib.parse import urlsplit

import penstock
from penstock import Descriptor, Request, RuleRequest

ADDRESS = os.environ["PENSTOCK"]
PATIENCE = 60.0  # detects hangs alone
CLIENT = penstock.Client(ADDRESS, timeout=PATIENCE)


def daemon(action: str) -> None:
    print(action, flush=True)
    sys.stdin.readline()


@contextmanager
def answering(body: str) -> Iterator[Tuple[str, List[str]]]:
    """Run a server that always answers the same, and yield its address and the requests."""
    requests: List[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


class ClientTest(unittest.TestCase):
    def test_take_charges_and_denies(self) -> None:
        request = Request("py-take", "2/1h")
        first = CLIENT.take(request)
        self.assertEqual((first.allowed, first.granted, first.limit, first.remaining), (True, 1, 2, 1))
        self.assertEqual((first.limited, first.retry_after, first.source), (True, 0, "store"))
        denied = CLIENT.take(replace(request, cost=2))
        self.assertFalse(denied.allowed)
        assert denied.retry_after is not None
        self.assertTrue(1700 < denied.retry_after <= 1800, denied)
        never = CLIENT.take(replace(request, cost=3), wait=3600)
        self.assertEqual((never.allowed, never.retry_after), (False, None))
        self.assertIn("never", never.detail)

    def test_take_sends_every_field(self) -> None:
        request = Request("py-fields", "10/24h")
        self.assertEqual(CLIENT.take(replace(request, cost=30, at_most=True)).granted, 10)
        self.assertEqual(CLIENT.take(replace(request, cost=5, overdraw=True)).granted, 5)
        self.assertGreater(CLIENT.take(replace(request, max_delay=80000)).delay, 0)
        self.assertFalse(CLIENT.take(Request("py-free", "10/24h", 6, keep_free=5)).allowed)
        key = Request(b"py\x00\xff\x80", "10/24h")
        self.assertEqual(CLIENT.take(key).remaining, 9)
        self.assertEqual(CLIENT.peek(key).remaining, 9)

    def test_take_goes_by_rules(self) -> None:
        request = RuleRequest("shop", [Descriptor({"phone": "py"}), Descriptor({"colour": "red"})])
        self.assertFalse(CLIENT.take(replace(request, keep_free=5)).allowed)
        decision = CLIENT.take(request)
        self.assertEqual(decision.decisions[0].rule, "shop/phone")
        self.assertEqual((decision.decisions[1].allowed, decision.decisions[1].limited), (True, False))
        self.assertEqual(CLIENT.peek(request).remaining, decision.remaining)
        self.assertEqual(CLIENT.take(replace(request, cost=9, at_most=True, max_delay=1)).granted, 4)

    def test_peek_and_refund_replace_the_costs_of_descriptors(self) -> None:
        request = RuleRequest("shop", [Descriptor({"team": "costs-py"}, cost=700)])
        self.assertEqual(CLIENT.take(request).granted, 700)
        self.assertEqual(CLIENT.peek(request).decisions[0].granted, 0)
        with penstock.Client(ADDRESS, timeout=PATIENCE, token=os.environ["TOKEN"]) as permitted:
            self.assertLess(permitted.refund(request).decisions[0].granted, -600)
            with self.assertRaises(penstock.InvalidRequestError):
                permitted.refund(replace(request, descriptors=[Descriptor({"team": "costs-py"}, cost=-700)]))

    def test_take_all_charges_all_or_none(self) -> None:
        requests = [Request("py-all-a", "5/1h"), Request("py-all-b", "1/1h")]
        self.assertTrue(CLIENT.take_all(requests).allowed)
        self.assertEqual([d.allowed for d in CLIENT.take_all(requests).decisions], [True, False])
        self.assertEqual(CLIENT.peek(requests[0]).remaining, 4)

    def test_settle_moves_the_charge_to_what_was_used(self) -> None:
        request = Request("py-settle", "100/24h", id="settle-py")
        CLIENT.take(replace(request, cost=40, hold=7200))
        self.assertEqual(CLIENT.settle(replace(request, cost=15)).granted, 15)
        self.assertEqual(CLIENT.settle(replace(request, cost=15)).remaining, 85)
        self.assertEqual(CLIENT.settle(replace(request, cost=130)).remaining, 0)  # 30 are owed
        with self.assertRaises(penstock.UnknownIDError):
            CLIENT.settle(replace(request, id="unknown"))

    def test_settle_goes_by_rules(self) -> None:
        request = RuleRequest("shop", [Descriptor({"team": "py"})], cost=400, id="rules-py")
        self.assertEqual(CLIENT.take(request).granted, 400)
        self.assertEqual(CLIENT.settle(replace(request, cost=150)).decisions[0].granted, 150)
        with self.assertRaises(penstock.UnknownIDError):
            CLIENT.settle(replace(request, id="unknown"))

    def test_settle_all_settles_every_limit_of_an_id(self) -> None:
        requests = [Request("py-each-a", "100/24h", 30), Request("py-each-b", "50/24h", 30)]
        CLIENT.take_all(requests, id="each-py")
        CLIENT.settle_all([replace(r, cost=10) for r in requests], id="each-py")
        self.assertEqual([CLIENT.peek(r).remaining for r in requests], [90, 40])

    def test_refund_returns_what_was_taken(self) -> None:
        request = Request("py-refund", "10/24h", 6, id="refund-py")
        CLIENT.take(request)
        self.assertEqual(CLIENT.refund(request).granted, -6)
        self.assertEqual(CLIENT.refund(request).remaining, 10)
        with self.assertRaises(penstock.ForbiddenError):
            CLIENT.refund(replace(request, id=None))
        CLIENT.take(replace(request, id=None, cost=3))
        with penstock.Client(ADDRESS, timeout=PATIENCE, token=os.environ["TOKEN"]) as permitted:
            self.assertEqual(permitted.refund(replace(request, id=None, cost=2)).remaining, 9)

    def test_invalid_requests_are_typed_errors(self) -> None:
        with self.assertRaises(penstock.InvalidRequestError) as raised:
            CLIENT.take(Request("k", "1/1minite"))
        self.assertEqual((raised.exception.status, raised.exception.pointer), (400, "#/limit"))
        bad: List[Any] = [-1, 1.5, True, "1"]
        for cost in bad:
            with self.assertRaises(penstock.InvalidRequestError):
                CLIENT.take(Request("k", "1/1m", cost))
        with self.assertRaises(penstock.InvalidRequestError):
            CLIENT.refund(Request("k", "1/1m", -1))
        with self.assertRaises(ValueError):
            penstock.Client(ADDRESS, on_unavailable="alow")
        with self.assertRaises(ValueError):
            penstock.Client("localhost:8080")

    def test_a_long_key_does_not_pass_a_client_that_fails_open(self) -> None:
        with penstock.Client("http://127.0.0.1:1", on_unavailable="allow") as client:  # nothing is sent
            with self.assertRaises(penstock.InvalidRequestError):
                client.take(Request("k" * 5_000_000, "1/1m"))

    def test_wait_honours_retry_after(self) -> None:
        request = Request("py-wait", "20/1s burst=1")
        CLIENT.take(request)
        self.assertEqual(sum(CLIENT.take(request, wait=60).granted for _ in range(3)), 3)
        long = Request("py-long", "1/1h")
        CLIENT.take(long)
        self.assertFalse(CLIENT.take(long, wait=1).allowed)  # at once: a retry would come too late

    def test_a_lost_answer_is_charged_once(self) -> None:
        request = Request("py-lost", "100/24h", 10)
        with losing_proxy(2) as (address, seen), penstock.Client(address, timeout=PATIENCE) as lossy:
            with self.assertRaises(penstock.UnavailableError):
                lossy.take(request)  # charged, and the answer is lost
            decision = lossy.take(request, wait=60)
        self.assertEqual((decision.allowed, decision.remaining, len(seen)), (True, 80, 3))

    def test_a_lost_answer_is_charged_once_though_the_id_is_empty(self) -> None:
        request = Request("py-empty-id", "100/24h", 10, id="")
        with losing_proxy(1) as (address, seen), penstock.Client(address, timeout=PATIENCE) as lossy:
            decision = lossy.take(request, wait=60)
        self.assertEqual((decision.allowed, decision.remaining, len(seen)), (True, 90, 2))

    def test_a_request_by_rules_with_an_empty_id_is_not_repeated(self) -> None:
        request = RuleRequest("shop", [Descriptor({"user": "empty-py"})], id="")
        with losing_proxy(1) as (address, seen), penstock.Client(address, timeout=PATIENCE) as lossy:
            with self.assertRaises(penstock.UnavailableError):
                lossy.take(request, wait=60)
            self.assertEqual(len(seen), 1)

    def test_a_lost_answer_is_charged_once_under_a_limit_of_a_short_period(self) -> None:
        # The first retry comes after 25 ms, and the daemon would remember the ID for one.
        request = Request("py-short", "1/1ms burst=1000000000", 100_000_000)
        with losing_proxy(1) as (address, _), penstock.Client(address, timeout=PATIENCE) as lossy:
            self.assertGreaterEqual(lossy.take(request, wait=60).remaining, 900_000_000)
        both = [replace(request, key="py-short-a"), replace(request, key="py-short-b")]
        with losing_proxy(1) as (address, _), penstock.Client(address, timeout=PATIENCE) as lossy:
            self.assertGreaterEqual(lossy.take_all(both, wait=60).remaining, 900_000_000)

    def test_malformed_answers_are_unavailable(self) -> None:
        bodies = [
            '{"allowed": true, "decisions": null}',
            '{"allowed": true, "decisions": [null]}',
            '{"allowed": false, "retry_after": "soon"}',
            '{"allowed": false, "retry_after": -5}',
            '{"allowed": false, "retry_after": 1e999}',
            '{"allowed": false, "retry_after": 1' + "0" * 400 + "}",
            '{"allowed": true, "granted": true}',
            '{"allowed": true, "source": 7}',
            '{"allowed": 1}',
            "[" * 200000,
            "nonsense",
        ]
        for body in bodies:
            with answering(body) as (address, _):
                decision = penstock.Client(address, timeout=PATIENCE, on_unavailable="deny").take(Request("k", "1/1h"))
                self.assertEqual((decision.allowed, decision.source), (False, "client"), body[:80])

    def test_a_retry_pauses_whatever_the_answer_says(self) -> None:
        with answering('{"allowed": false, "retry_after": 0}') as (address, requests):
            decision = penstock.Client(address, timeout=PATIENCE).take(Request("k", "1/1h"), wait=0.2)
            self.assertFalse(decision.allowed)
            self.assertLess(len(requests), 25)

    def test_a_daemon_that_does_not_answer_is_unavailable(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            impatient = penstock.Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05)
            with self.assertRaises(penstock.UnavailableError):
                impatient.peek(Request("k", "1/1m"))

    def test_the_gateway_settles_what_it_has_streamed(self) -> None:
        day = Request("Bert", "20000/24h name=llm-day")
        with gateway() as address:
            before = CLIENT.peek(day)
            stream = complete(address, {"prompt": "Why is the sky blue?", "max_tokens": 400})
            tokens = stream.count(b"data: ")
            self.assertGreater(tokens, 5)
            # The stream ends after the settlement: 6 tokens of the prompt, and those streamed, of
            # which one is available again every four seconds.
            spent = before.remaining - CLIENT.peek(day).remaining
            self.assertTrue(0 < spent <= 6 + tokens, f"{spent} of {tokens} tokens were charged")
            for prompt, max_tokens, status in (("", 2000, 429), ("free", -2, 400)):
                with self.assertRaises(urllib.error.HTTPError) as raised:
                    complete(address, {"prompt": prompt, "max_tokens": max_tokens})
                self.assertEqual(raised.exception.code, status)
                raised.exception.close()

    def test_outage_is_decided_by_choice_and_a_retry_outlives_it(self) -> None:
        request = Request("py-outage", "100/24h", 10, id="outage-py")
        CLIENT.take(request)
        daemon("kill")
        for call in (CLIENT.take, CLIENT.settle):
            with self.assertRaises(penstock.UnavailableError):
                call(request)
        opened = penstock.Client(ADDRESS, on_unavailable="allow").take_all([request, request])
        self.assertEqual((opened.allowed, opened.source, len(opened.decisions)), (True, "client", 2))
        closed = penstock.Client(ADDRESS, on_unavailable="deny").take(request)
        self.assertEqual((closed.allowed, closed.source, closed.retry_after), (False, "client", 1))
        self.assertIsInstance(closed.error, penstock.UnavailableError)
        retried: List[penstock.Decision] = []
        thread = threading.Thread(target=lambda: retried.append(CLIENT.take(request, wait=120)))
        thread.start()
        daemon("start")
        thread.join()
        self.assertEqual([(d.allowed, d.remaining) for d in retried], [(True, 90)])
        # On Redis this is one charge of before and after the restart.
        self.assertEqual(CLIENT.settle(replace(request, cost=4), wait=120).remaining, 96)


class AsyncClientTest(unittest.IsolatedAsyncioTestCase):
    async def test_verbs_agree_with_the_other_client(self) -> None:
        request = Request("py-async", "10/24h", 4, id="async-py")
        async with penstock.AsyncClient(ADDRESS, timeout=PATIENCE) as client:
            self.assertEqual((await client.take(request)).remaining, 6)
            self.assertEqual(CLIENT.peek(request).remaining, 6)
            self.assertEqual((await client.settle(replace(request, cost=1))).remaining, 9)
            self.assertEqual((await client.refund(request)).remaining, 10)
            self.assertEqual((await client.take_all([replace(request, id=None), Request("py-async-b", "1/24h")])).allowed, True)
            with self.assertRaises(penstock.InvalidRequestError):
                await client.take(Request("k", "1/1minite"))
            with self.assertRaises(penstock.UnknownIDError):
                await client.settle(replace(request, id="unknown"))

    async def test_tasks_share_a_client_and_the_limit(self) -> None:
        async with penstock.AsyncClient(ADDRESS, timeout=PATIENCE) as client:
            decisions = await asyncio.gather(*(client.take(Request("py-tasks", "30/24h")) for _ in range(50)))
        self.assertEqual(sum(d.allowed for d in decisions), 30)

    async def test_wait_honours_retry_after(self) -> None:
        request = Request("py-async-wait", "20/1s burst=1")
        async with penstock.AsyncClient(ADDRESS, timeout=PATIENCE) as client:
            self.assertEqual([(await client.take(request, wait=60)).granted for _ in range(3)], [1, 1, 1])

    async def test_a_lost_answer_is_charged_once(self) -> None:
        request = Request("py-async-lost", "100/24h", 10)
        with losing_proxy(2) as (address, seen):
            async with penstock.AsyncClient(address, timeout=PATIENCE) as lossy:
                with self.assertRaises(penstock.UnavailableError):
                    await lossy.take(request)  # charged, and the answer is lost
                decision = await lossy.take(request, wait=60)
        self.assertEqual((decision.allowed, decision.remaining, len(seen)), (True, 80, 3))

    async def test_a_cancelled_request_does_not_answer_the_next(self) -> None:
        answers: List[bytes] = [b"", DENIED]  # the first is never sent
        async with talking_server(answers) as address, penstock.AsyncClient(address, timeout=PATIENCE) as client:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.take(Request("k", "1/1m")), 0.05)
            self.assertFalse((await client.take(Request("k", "1/1m"))).allowed)

    async def test_unread_bytes_do_not_answer_the_next(self) -> None:
        allowed = b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"allowed": true}'
        async with talking_server([allowed + allowed, DENIED]) as address:
            async with penstock.AsyncClient(address, timeout=PATIENCE) as client:
                self.assertTrue((await client.take(Request("k", "1/1m"))).allowed)
                self.assertFalse((await client.take(Request("k", "1/1m"))).allowed)

    async def test_responses_of_proxies_are_read(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
            b"%x\r\n%s\r\n" % (len(part), part) for part in (b'{"allowed":', b"true}")
        )
        to_the_end = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"allowed": true}'
        async with talking_server([chunked + b"0\r\n\r\n", to_the_end]) as address:
            async with penstock.AsyncClient(address, timeout=PATIENCE) as client:
                self.assertTrue((await client.take(Request("k", "1/1m"))).allowed)
                self.assertTrue((await client.take(Request("k", "1/1m"))).allowed)

    async def test_connections_that_a_proxy_closes_are_not_used_again(self) -> None:
        for head in (b"HTTP/1.0 200 OK", b"HTTP/1.1 200 OK\r\nConnection: close"):
            async with talking_server([head + b'\r\nContent-Length: 17\r\n\r\n{"allowed": true}']) as address:
                async with penstock.AsyncClient(address, timeout=PATIENCE) as client:
                    self.assertTrue((await client.take(Request("k", "1/1m"))).allowed)
                    self.assertFalse(client._transport._idle, head)

    async def test_what_is_no_decision_is_unavailable(self) -> None:
        lies = [
            b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 3,
            b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000, b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno",
        ]
        for lie in lies:
            async with talking_server([lie]) as address:
                async with penstock.AsyncClient(address, timeout=0.2, on_unavailable="deny") as client:
                    decision = await client.take(Request("k", "1/1m"))
                    self.assertEqual((decision.allowed, decision.source), (False, "client"), lie)


DENIED = b'HTTP/1.1 429 Too Many Requests\r\nContent-Length: 18\r\n\r\n{"allowed": false}'


@asynccontextmanager
async def talking_server(answers: List[bytes]) -> AsyncIterator[str]:
    """Answer one request after the other with these bytes, on any connection."""
    left = list(answers)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(left.pop(0) if left else b"")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextmanager
def losing_proxy(drop: int) -> Iterator[Tuple[str, List[str]]]:
    """Forward requests to the daemon and drop the first answers."""
    seen: List[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            lose = len(seen) <= drop
            to = http.client.HTTPConnection(urlsplit(ADDRESS).netloc, timeout=PATIENCE)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            to.request("POST", self.path, body, {"Content-Type": "application/json"})
            response = to.getresponse()
            answer = response.read()
            to.close()
            if not lose:
                self.send_response(response.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


@contextmanager
def gateway() -> Iterator[str]:
    file = Path(__file__).parent.parent / "examples" / "llm_gateway.py"
    environment = {**os.environ, "PORT": "0"}
    with subprocess.Popen([sys.executable, str(file)], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def complete(address: str, body: Dict[str, object]) -> bytes:
    request = urllib.request.Request(f"{address}/complete", json.dumps(body).encode(), {"X-API-Key": "bert"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        text: bytes = response.read()
        return text


if __name__ == "__main__":
    unittest.main()
