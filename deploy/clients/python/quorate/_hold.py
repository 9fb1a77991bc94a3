"""Locks that are renewed in the background."""
from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Callable, Optional, Type

from ._errors import Closed, LockLost, QuorateError, UnknownOutcome

if TYPE_CHECKING:
    from ._client import Client

_MIN_RENEWAL = 0.1  # seconds between two renewals, at least


class Hold:
    """A lock that is renewed in the background, as a context manager.

    It ends with its block, with the settlement of what is locked, or when the lock is lost. If that is so, and the
    block has raised nothing else, the end of the block raises it.
    """

    def __init__(self, client: Client, verb: str, renew: Callable[[Optional[float]], float],
                 turn: threading.Lock) -> None:
        self._client, self._verb, self._renew, self._turn = client, verb, renew, turn
        self._error: Optional[QuorateError] = None
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None
        #: Set when the lock is lost, or the channel closed.
        self.lost = threading.Event()

    @property
    def active(self) -> bool:
        """Whether the lock is being renewed."""
        return not self._over.is_set()

    def check(self) -> None:
        """Raise :class:`LockLost` or :class:`Closed` if that has happened."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Hold:
        began = time.monotonic()
        left = self._renew(None)
        if left <= 0:
            raise ValueError("it has no lock")
        self._client._watch(self)
        self._thread = threading.Thread(target=self._keep, args=(began + left,), name="quorate lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.end()
        if kind is None:
            self.check()

    def end(self, why: Optional[QuorateError] = None) -> None:
        """End the renewals, since the lock was given up or, with an error, lost."""
        if self._over.is_set():
            return
        self._error = why
        self._over.set()
        self._client._unwatch(self)
        if why is not None:
            self.lost.set()

    def _keep(self, ends: float) -> None:
        while True:
            left = max(ends - time.monotonic(), 0)
            if self._over.wait(min(left, max(left / 2, _MIN_RENEWAL))):
                return
            left = max(ends - time.monotonic(), 0)
            if not self._turn.acquire(timeout=left):
                return self.end(LockLost(self._verb, 0, "it was not renewed in time", []))
            try:
                if self._over.is_set():
                    return
                began = time.monotonic()
                ends = began + self._renew(max(ends - began, 0))
            except UnknownOutcome as e:
                if time.monotonic() >= ends:
                    lost = LockLost(self._verb, 0, f"it was not renewed in time: {e}", [])
                    lost.__cause__ = e
                    return self.end(lost)
            except (LockLost, Closed) as e:
                return self.end(e)
            except QuorateError as e:
                lost = LockLost(self._verb, getattr(e, "code", 0), str(e), getattr(e, "results", []))
                lost.__cause__ = e
                return self.end(lost)
            finally:
                self._turn.release()


class Holder:
    """What has a lock: one command about it at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turn = threading.Lock()
        self._hold: Optional[Hold] = None

    def _begin(self, verb: str, renew: Callable[[Optional[float]], float]) -> Hold:
        self._end()
        self._hold = Hold(self._client, verb, renew, self._turn)
        return self._hold

    def _end(self, why: Optional[QuorateError] = None) -> None:
        if self._hold is not None:
            self._hold.end(why)

    def _give_up(self, send: Callable[[], object], timeout: float) -> None:
        """Send what gives the lock up. If that fails, the renewals go on."""
        if not self._turn.acquire(timeout=timeout):
            raise UnknownOutcome("not sent: a renewal has not been answered")
        try:
            send()
            self._end()
        except LockLost as e:
            self._end(e)
            raise
        finally:
            self._turn.release()
