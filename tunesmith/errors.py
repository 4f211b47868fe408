"""Errors that a person reads: what, where, and what to write instead. Each has an id that ``docs/errors.md`` explains."""

from __future__ import annotations


class TunesmithError(Exception):
    """Base of the errors that tunesmith raises on purpose; its text is for the user and needs no traceback.

    Args:
        message: one or a few sentences: what, where, what to do.
        id: kebab-case, explained in ``docs/errors.md``.
    """

    fault = "system"
    exit_code = 1

    def __init__(self, message: str, id: str = ""):
        super().__init__(message)
        self.message = message
        self.id = id or type(self).default_id

    default_id = "error"

    def __str__(self) -> str:
        return f"{self.message}  [{self.id}]" if self.id else self.message


class BadInput(TunesmithError, ValueError):
    """What the user gave cannot be used; nothing was started, or what was started is undone."""

    fault = "user"
    exit_code = 2
    default_id = "bad-input"
