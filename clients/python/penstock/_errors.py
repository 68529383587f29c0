from __future__ import annotations

from typing import Any, Optional


class PenstockError(Exception):
    """No decision was made."""

    def __init__(
        self, message: str, *, status: int = 0, type: str = "", pointer: str = "", retry_after: float = 0
    ) -> None:
        super().__init__(message)
        self.status = status  # the HTTP status, or 0 if there was no response
        self.type = type  # the type of the problem document
        self.pointer = pointer  # the field of the request that is invalid, as a JSON pointer
        self.retry_after = retry_after  # when to retry, if the response said so


class InvalidRequestError(PenstockError):
    """The request is invalid: correct the program. Nothing was charged."""


class ForbiddenError(PenstockError):
    """A refund without permission, or a limit that the caller may not bring."""


class UnknownIDError(PenstockError):
    """The daemon does not remember the ID. Nothing was charged."""


class UnavailableError(PenstockError):
    """The daemon cannot be reached in time, or cannot decide.

    Units may have been taken; a request with an ID can be repeated without being
    charged twice.
    """


def error_of(status: int, problem: Any, retry_after: Optional[str]) -> PenstockError:
    """Return the error of a response that is not a decision."""
    fields = {k: v for k, v in problem.items() if isinstance(v, str)} if isinstance(problem, dict) else {}
    message = fields.get("detail") or fields.get("title") or f"unexpected response with status {status}"
    return _class_of(status, fields.get("type", ""))(
        message,
        status=status,
        type=fields.get("type", ""),
        pointer=fields.get("pointer", ""),
        retry_after=_seconds(retry_after),
    )


def _class_of(status: int, type: str) -> type[PenstockError]:
    # A 429 without a decision is that of a proxy, and below 400 there is no daemon.
    if status >= 500 or status == 429 or status < 400:
        return UnavailableError
    if status in (401, 403):
        return ForbiddenError
    return UnknownIDError if type.endswith("#ProblemUnknownID") else InvalidRequestError


def _seconds(header: Optional[str]) -> float:
    return float(header) if header and header.isascii() and header.isdigit() and len(header) < 10 else 0
