"""A gateway to a language model that gives each customer 2000 tokens a minute and 20000 a day.

What a completion costs is known only when it is done: the most that it can cost is taken first,
under an ID and from both budgets or none, and settled when the stream ends, also if the customer
has hung up. Tokens beyond the estimate become a debt.

    penstock serve
    PYTHONPATH=. python3 examples/llm_gateway.py
    curl -N -H 'X-API-Key: ada' -d '{"prompt": "Why is the sky blue?", "max_tokens": 400}' localhost:8090/complete
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import uuid
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator, List, Optional

import penstock

# Completions cost money, so a daemon that cannot be reached does not lift the limits. They take
# seconds anyway, so a daemon that is slow is worth waiting for.
CLIENT = penstock.Client(os.environ.get("PENSTOCK", "http://localhost:8080"), on_unavailable="deny", timeout=10)

# A real gateway looks up a hash of the key in a database. Keys that are not checked would have a
# budget each.
CUSTOMERS = {"ada": "Ada", "bert": "Bert"}


def budgets(customer: str, cost: int) -> List[penstock.Request]:
    # A completion may last longer than the shorter limit remembers its ID, so hold it.
    return [
        penstock.Request(customer, "2000/1m name=llm-minute", cost, hold=600),
        penstock.Request(customer, "20000/24h name=llm-day", cost, hold=600),
    ]


def model(prompt: str, max_tokens: int) -> Iterator[str]:
    for word in f"You asked: {prompt} I do not know, but I say it in many words.".split()[:max_tokens]:
        time.sleep(0.001)
        yield word


def settle(id: str, customer: str, used: int) -> None:
    try:
        CLIENT.settle_all([replace(r, hold=0) for r in budgets(customer, used)], id=id, wait=30)
    except penstock.PenstockError as error:  # what cannot be settled stays charged as estimated
        print("not settled:", id, error, file=sys.stderr)


class Gateway(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        customer = CUSTOMERS.get(self.headers.get("X-API-Key", ""))
        if customer is None:
            return self.reply(401)
        try:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), 1 << 16)))
            prompt, max_tokens = str(body["prompt"]), int(body.get("max_tokens", 1000))
            if max_tokens < 1:  # a customer must not lower the estimate, which would take nothing
                raise ValueError("want max_tokens of at least 1")
            self.complete(customer, prompt, max_tokens)
        except (KeyError, TypeError, ValueError, penstock.InvalidRequestError):
            self.reply(400)

    def complete(self, customer: str, prompt: str, max_tokens: int) -> None:
        id, used = uuid.uuid4().hex, len(prompt) // 4 + 1
        decision = CLIENT.take_all(budgets(customer, used + max_tokens), id=id, wait=2)
        if not decision.allowed:
            return self.reply(503 if decision.error else 429, decision.retry_after)
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for token in model(prompt, max_tokens):
                used += 1
                self.wfile.write(f"data: {json.dumps(token)}\n\n".encode())
        except ConnectionError:
            pass  # what was generated so far is still paid for
        finally:
            settle(id, customer, used)

    def reply(self, status: int, retry_after: Optional[float] = None) -> None:
        self.send_response(status)
        if retry_after is not None:
            self.send_header("Retry-After", str(math.ceil(retry_after)))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8090"))), Gateway)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
