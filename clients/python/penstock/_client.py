from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any, Awaitable, Callable, Coroutine, Dict, Generator, Generic, Optional, Sequence, TypeVar, Union, cast

from ._async_transport import AsyncTransport
from ._errors import UnavailableError, UnknownIDError, error_of
from ._transport import Response, Transport
from ._wire import AnyRequest, Body, Decision, Request, RuleRequest, check_cost, check_costs, decode, negate, substitute

_LONGEST_HOLD = 24 * 60 * 60.0  # for which the daemon remembers an ID
_SHORTEST_PAUSE = 0.01  # before a retry, whatever the answer says
_MOST_ORPHANS = 10_000  # a crowd that hangs up while the daemon is away must not fill the memory

_log = logging.getLogger("penstock")

Returned = TypeVar("Returned")
T = TypeVar("T")


@dataclass(frozen=True)
class Post:
    """A request to send."""

    path: str
    body: Body


# A call yields what to do, a request to send or seconds to sleep, and receives the result of that.
Step = Union[Post, float]
Result = Union[Response, UnavailableError, None]
Call = Generator[Step, Result, Decision]


class _Verbs(Generic[Returned]):
    """The verbs of both clients, which differ in how they wait."""

    def __init__(self, timeout: float, on_unavailable: str) -> None:
        if on_unavailable not in ("allow", "deny", "raise"):
            raise ValueError(f"on_unavailable {on_unavailable!r}: want allow, deny or raise")
        self._on_unavailable, self._timeout = on_unavailable, timeout

    def _run(self, call: Call, id: Optional[str] = None, corrects: bool = False) -> Returned:
        """Run a call under an ID that the program knows. One that corrects a charge must not be given up."""
        raise NotImplementedError

    def take(self, request: AnyRequest, *, wait: float = 0) -> Returned:
        """Take units. A denial is a decision, not an error."""
        check_costs(request)
        if isinstance(request, RuleRequest):
            return self._run(self._take(request.body(), bool(request.id), wait, len(request.descriptors)), request.id)
        id = request.id
        if wait:
            request = self._held(replace(request, id=id or _new_id()), wait)
        return self._run(self._take(request.body(), bool(request.id), wait, 0), id)

    def take_all(
        self,
        requests: Union[Sequence[Request], Sequence[RuleRequest]],
        *,
        id: Optional[str] = None,
        wait: float = 0,
    ) -> Returned:
        """Take up to 64 requests, or none of them: all with limits, or all of one domain."""
        if not id and wait and all(isinstance(r, Request) for r in requests):
            id = _new_id()
        for request in requests:
            check_costs(request)
        held = [self._held(r, wait) if wait and isinstance(r, Request) else r for r in requests]
        return self._run(self._take(_list_of(held, id), bool(id), wait, len(requests)), id)

    def settle(self, request: AnyRequest, *, wait: float = 0) -> Returned:
        """Make what was charged under the ID equal to the cost, once that is known."""
        check_costs(request)
        return self._run(self._call("/v1/settle", request.body(), True, wait), request.id, corrects=True)

    def settle_all(
        self,
        requests: Union[Sequence[Request], Sequence[RuleRequest]],
        *,
        id: str,
        wait: float = 0,
    ) -> Returned:
        """Settle what take_all took under an ID."""
        for request in requests:
            check_costs(request)
        return self._run(self._call("/v1/settle", _list_of(requests, id), True, wait), id, corrects=True)

    def peek(self, request: AnyRequest, *, wait: float = 0) -> Returned:
        """Read the state of a key and charge nothing."""
        if isinstance(request, RuleRequest):
            descriptors = [replace(d, cost=None) for d in request.descriptors]
            return self._run(self._call("/v1/take", RuleRequest(request.domain, descriptors, cost=0).body(), True, wait))
        return self._run(self._call("/v1/take", Request(request.key, request.limit, cost=0).body(), True, wait))

    def refund(self, request: AnyRequest, *, wait: float = 0) -> Returned:
        """Return units, never more than were taken. Without an ID it needs permission."""
        check_cost(request.cost, 1)
        check_costs(request)
        repeatable = isinstance(request, Request) and bool(request.id)
        return self._run(self._call("/v1/take", negate(request).body(), repeatable, wait), request.id, corrects=True)

    def _held(self, request: Request, wait: float) -> Request:
        """Let the daemon remember the ID until the last retry, which else is charged again.

        Without hold it forgets the ID after one period of the limit, which may be shorter.
        """
        connect_send_and_receive = 3 * (self._timeout or _LONGEST_HOLD)
        return replace(request, hold=max(request.hold, min(wait + connect_send_and_receive, _LONGEST_HOLD)))

    def _take(self, body: Body, repeatable: bool, wait: float, decisions: int) -> Call:
        try:
            return (yield from self._call("/v1/take", body, repeatable, wait))
        except UnavailableError as error:
            if self._on_unavailable == "raise":
                raise
            return substitute(self._on_unavailable == "allow", error, decisions)

    def _call(self, path: str, body: Body, repeatable: bool, wait: float) -> Call:
        """Send until it is allowed, cannot be retried, or its time is over."""
        end, attempt = time.monotonic() + wait, 0
        while True:
            try:
                decision = _decision((yield Post(path, body)))
                pause = decision.retry_after
                if decision.allowed or pause is None or time.monotonic() + pause > end:
                    return decision
                pause = max(pause, _SHORTEST_PAUSE)
            except UnavailableError as error:
                pause = _backoff(error, attempt)
                if not repeatable or time.monotonic() + pause > end:
                    raise
            yield float(pause)
            attempt += 1


class Client(_Verbs[Decision]):
    """A client of the daemon. Threads may share it.

    address:        the daemon's HTTP listener
    token:          the daemon's token, for refunds without an ID and for limits over its ceilings
    timeout:        how long the client waits for the network at a time
    on_unavailable: what take and take_all do if no decision was made: "allow" fails open, "deny"
                    fails closed, "raise" raises UnavailableError
    tls:            which certificates https accepts. Default: those that the system trusts

    Every verb has the argument wait: retry for so long, after a denial once its retry_after has
    passed, and after an UnavailableError if repeating the request cannot charge it twice.
    """

    def __init__(
        self,
        address: str = "http://localhost:8080",
        *,
        token: Optional[str] = None,
        timeout: float = 1.0,
        on_unavailable: str = "raise",
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        super().__init__(timeout, on_unavailable)
        self._transport = Transport(address, token, timeout, tls)

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Call, id: Optional[str] = None, corrects: bool = False) -> Decision:
        result: Result = None
        while True:
            try:
                step = call.send(result)
            except StopIteration as end:
                return cast(Decision, end.value)
            result = self._do(step)

    def _do(self, step: Step) -> Result:
        if isinstance(step, float):
            time.sleep(step)
            return None
        try:
            return self._transport.post(step.path, step.body)
        except UnavailableError as error:
            return error


class AsyncClient(_Verbs[Awaitable[Decision]]):
    """A client for asyncio, with the verbs and arguments of Client. Tasks of one loop may share it.

    timeout is for a whole attempt, from connecting to the end of the response.

    A caller that is cancelled gets CancelledError at once, and what it has begun is brought to its
    end by a task of its own: settle, settle_all and refund with all their retries, and of a take
    under an ID of the program the attempt that is under way. What the program sends next under that
    ID waits for it, so settling after a take that was cancelled charges what was used.
    """

    def __init__(
        self,
        address: str = "http://localhost:8080",
        *,
        token: Optional[str] = None,
        timeout: float = 1.0,
        on_unavailable: str = "raise",
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        super().__init__(timeout, on_unavailable)
        self._transport = AsyncTransport(address, token, timeout, tls)
        self._orphans: Dict[object, asyncio.Future[Any]] = {}  # by ID, the last one under it

    async def close(self) -> None:
        """Wait for what goes on without its caller, and close idle connections."""
        while self._orphans:
            await asyncio.wait(list(self._orphans.values()))
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, call: Call, id: Optional[str] = None, corrects: bool = False) -> Decision:
        if corrects:
            return await self._outlive(id, lambda: self._steps(call))
        return await self._steps(call, id)

    async def _steps(self, call: Call, id: Optional[str] = None) -> Decision:
        """Do the steps of a call. With an ID, a request that was sent is brought to its end."""
        result: Result = None
        while True:
            try:
                step = call.send(result)
            except StopIteration as end:
                return cast(Decision, end.value)
            result = await self._do(step, id)

    async def _do(self, step: Step, id: Optional[str]) -> Result:
        if isinstance(step, float):
            await asyncio.sleep(step)
            return None
        post = step
        return await (self._outlive(id, lambda: self._post(post)) if id else self._post(post))

    async def _post(self, post: Post) -> Result:
        try:
            return await self._transport.post(post.path, post.body)
        except UnavailableError as error:
            return error

    async def _outlive(self, id: Optional[str], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work that goes on if the caller is cancelled, and after what does so under the same ID."""
        task = asyncio.ensure_future(_after(self._orphans.get(id), work))
        try:
            return await asyncio.shield(task)
        except (asyncio.CancelledError, GeneratorExit):
            self._adopt(id or object(), task)
            raise

    def _adopt(self, key: object, task: asyncio.Future[Any]) -> None:
        if len(self._orphans) >= _MOST_ORPHANS:
            _log.warning("a call was given up with its caller: %d others go on without theirs", len(self._orphans))
            task.cancel()
            return
        self._orphans[key] = task
        task.add_done_callback(lambda _: self._forget(key, task))

    def _forget(self, key: object, task: asyncio.Future[Any]) -> None:
        if self._orphans.get(key) is task:
            del self._orphans[key]
        if task.cancelled():
            _log.warning("a call was given up with the event loop, which ended before close")
            return
        error = task.exception()
        if error is not None and not isinstance(error, UnknownIDError):  # as after a take that was denied
            _log.warning("not settled after the caller was cancelled, so it stays charged: %s", error)


async def _after(before: Optional[asyncio.Future[Any]], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if before is not None:
        await asyncio.wait([before])
    return await work()


def _decision(result: Result) -> Decision:
    if isinstance(result, UnavailableError):
        raise result
    assert result is not None
    status, answer, retry_after = result
    decision = decode(answer) if status in (200, 429) else None
    if decision is None:
        raise error_of(status, answer, retry_after)
    return decision


def _list_of(requests: Sequence[AnyRequest], id: Optional[str]) -> Body:
    bodies = [{**r.body(), "id": id} if id else r.body() for r in requests]
    return {"mode": "all", "requests": bodies}


def _new_id() -> str:
    return uuid.uuid4().hex


def _backoff(error: UnavailableError, attempt: int) -> float:
    """Return what the response said or, with jitter, twice as long each time, up to a second."""
    return error.retry_after or min(1, 0.05 * 2.0 ** min(attempt, 9)) * random.uniform(0.5, 1)
