"""Client of the penstock daemon. All durations are in seconds."""

from ._client import AsyncClient, Client
from ._errors import (
    ForbiddenError,
    InvalidRequestError,
    PenstockError,
    UnavailableError,
    UnknownIDError,
)
from ._wire import Decision, Descriptor, Request, RuleRequest

__all__ = [
    "AsyncClient",
    "Client",
    "Decision",
    "Descriptor",
    "ForbiddenError",
    "InvalidRequestError",
    "PenstockError",
    "Request",
    "RuleRequest",
    "UnavailableError",
    "UnknownIDError",
]
