"""What calls raise."""
from __future__ import annotations

from typing import Any, Dict, List


class QuorateError(Exception):
    """The base of all that this package raises."""


class Closed(QuorateError):
    """The channel is closed; the cause, if there is one, is pika's."""


class SessionEnded(QuorateError):
    """The group of a session has been given up, since nothing of it was left, or its consumer was cancelled."""


class UnknownOutcome(QuorateError):
    """It is not known whether something has been done: no answer came in time, the channel was closed before, or the
    queue had no leader and may still do it."""


class Refused(QuorateError):
    """The broker has refused a command, or nacked or returned a message; it has not been done.

    ``verb`` is what was refused, ``code`` and ``text`` the broker's words (code 0: a nack, which has none), and
    ``results`` what became of each object that was named; empty: refused as a whole.
    """

    def __init__(self, verb: str, code: int, text: str, results: List[Dict[str, Any]]) -> None:
        super().__init__(f"{verb}: {code} {text}")
        self.verb, self.code, self.text, self.results = verb, code, text, results


class LockLost(Refused):
    """A delivery or a group is not the caller's any more."""


def refusal(verb: str, answer: Dict[str, Any]) -> QuorateError:
    """Return what an answer that is not ok means."""
    code, text = answer.get("code", 0), answer.get("error", "")
    if code == 406 and text.endswith("has no leader"):
        return UnknownOutcome(f"{verb}: {code} {text}")
    renews = verb.endswith(".renew")
    settles = verb.startswith("message.") and verb != "message.receive-deferred"
    lost = code == 404 and (renews or settles) or code == 405 and renews
    return (LockLost if lost else Refused)(verb, code, text, answer.get("results", []))
