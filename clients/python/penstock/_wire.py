from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union, cast

from ._errors import InvalidRequestError, UnavailableError

Body = Dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A request for a key under a limit."""

    key: Union[str, bytes]  # what is limited: a user, an address; bytes if it is not text
    limit: str  # as text, such as "30/1m burst=15"
    cost: int = 1
    id: Optional[str] = None  # requests with the same ID, key and limit are charged once
    at_most: bool = False  # take what is left if that is less than the cost
    overdraw: bool = False  # charge the cost whether or not it is left; the key owes the rest
    max_delay: float = 0  # the longest delay with which a bucket may grant the request
    keep_free: int = 0  # take only if so many units remain afterwards
    hold: float = 0  # how long the ID is remembered, if longer than the limit's period

    def body(self) -> Body:
        key: Body = {"key": self.key} if isinstance(self.key, str) else {"key_base64": _base64(self.key)}
        return {**key, "limit": self.limit, "cost": self.cost, **_options(self)}


@dataclass(frozen=True)
class Descriptor:
    """Entries that the daemon's rules match, in order."""

    entries: Mapping[str, str]
    cost: Optional[int] = None  # in place of that of the request

    def body(self) -> Body:
        entries = [{"key": key, "value": value} for key, value in self.entries.items()]
        return {"entries": entries} if self.cost is None else {"entries": entries, "cost": self.cost}


@dataclass(frozen=True)
class RuleRequest:
    """A request by the daemon's rules. All descriptors are granted or none is charged."""

    domain: str
    descriptors: Sequence[Descriptor]
    cost: int = 1
    id: Optional[str] = None  # requests with the same ID are charged once; a rule needs settle to be settled
    at_most: bool = False  # take what is left under all limits if that is less than the cost
    max_delay: float = 0  # the longest delay under a rule with a leaky bucket; 0 is any
    keep_free: int = 0  # take only if so many units remain, where the rule keeps fewer free

    def body(self) -> Body:
        body = {"domain": self.domain, "descriptors": [d.body() for d in self.descriptors], "cost": self.cost}
        return {**body, **_options(self)}


AnyRequest = Union[Request, RuleRequest]


@dataclass(frozen=True)
class Decision:
    """What the daemon decided about a request, or the tightest of several decisions."""

    allowed: bool  # whether the request may proceed
    limited: bool = False  # whether a limit applied; if not, the numbers below are 0
    granted: int = 0  # the units that were taken; negative for a refund
    limit: int = 0  # the most units that can be granted at once
    remaining: int = 0  # the units that can be taken now
    retry_after: Optional[float] = 0  # when the same request is allowed; None if it never will be
    reset_after: Optional[float] = 0  # when all units are available again; None if never
    delay: float = 0  # how long to wait before acting on an allowed request
    source: str = ""  # which part decided; "client" if on_unavailable did
    rule: str = ""  # the rule that decided, if any
    mode: str = ""  # "shadow" or "quota" if the rule does not deny alone
    detail: str = ""  # why a request can never pass
    decisions: List[Decision] = field(default_factory=list)  # one for each request or descriptor
    error: Optional[UnavailableError] = None  # why the daemon made none, if the source is "client"


_numbers = ("granted", "limit", "remaining", "retry_after", "reset_after", "delay")
_texts = ("source", "rule", "mode", "detail")


def decode(body: Any, nested: bool = False) -> Optional[Decision]:
    """Return a decision of the daemon, or None if it is not one."""
    if not isinstance(body, dict) or not isinstance(body.get("allowed"), bool):
        return None
    fields = {name: body[name] for name in _numbers + _texts if name in body}
    if not all(_valid(name, value) for name, value in fields.items()):
        return None
    if "retry_after" not in body and not body["allowed"]:
        fields["retry_after"] = None
    inner = [] if nested else body.get("decisions", [])
    decisions = [decode(d, nested=True) for d in inner] if isinstance(inner, list) else [None]
    if None in decisions:
        return None
    return Decision(allowed=body["allowed"], limited="granted" in body, decisions=cast(List[Decision], decisions), **fields)


def _valid(name: str, value: object) -> bool:
    if name in _texts:
        return isinstance(value, str)
    if name in ("retry_after", "reset_after") and value is None:
        return True
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= 2**63 and (name == "granted" or value >= 0)  # so that it can be slept for


def substitute(allowed: bool, error: UnavailableError, requests: int) -> Decision:
    """Return the decision in place of one that was not made."""
    retry_after = 0 if allowed else max(1, error.retry_after)
    d = Decision(allowed=allowed, retry_after=retry_after, source="client", error=error)
    return replace(d, decisions=[d] * requests)


def check_cost(cost: object, least: int) -> None:
    """Raise unless the cost is an integer of at least this.

    The sign of a cost selects the verb, so a wrong sign would refund where the program
    wants to take.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < least:
        raise InvalidRequestError(f"cost {cost!r}: want an integer of at least {least}", pointer="#/cost")


def check_costs(request: AnyRequest) -> None:
    check_cost(request.cost, 0)
    if isinstance(request, RuleRequest):
        for d in request.descriptors:
            check_cost(request.cost if d.cost is None else d.cost, 0)


def negate(request: AnyRequest) -> AnyRequest:
    """Return a request that refunds what this one takes."""
    if isinstance(request, Request):
        return replace(request, cost=-request.cost)
    descriptors = [d if d.cost is None else replace(d, cost=-d.cost) for d in request.descriptors]
    return replace(request, cost=-request.cost, descriptors=descriptors)


def _options(request: AnyRequest) -> Body:
    names = ("id", "at_most", "overdraw", "max_delay", "keep_free", "hold")
    values = {name: getattr(request, name, None) for name in names}
    return {name: value for name, value in values.items() if value}


def _base64(key: bytes) -> str:
    return base64.b64encode(key).decode()
