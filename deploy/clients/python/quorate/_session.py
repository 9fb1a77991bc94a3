"""Groups of messages with one holder at a time."""
from __future__ import annotations

import base64
import itertools
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Set, Type

from ._errors import LockLost, SessionEnded
from ._hold import Hold, Holder

if TYPE_CHECKING:
    from ._client import Client, Consumer, Message

_MAX_TAGS = 256  # delivery tags of one command


class Group(Holder):
    """A group of messages that a consumer of the client holds."""

    def __init__(self, client: Client, queue: str, consumer_tag: str, group_id: str) -> None:
        super().__init__(client)
        self.queue, self.consumer_tag, self.group_id = queue, consumer_tag, group_id

    def _command(self, verb: str, body: bytes = b"", timeout: Optional[float] = None) -> Dict[str, Any]:
        headers = {"x-queue": self.queue, "x-group-id": self.group_id, "x-consumer-tag": self.consumer_tag}
        results = self._client.command(verb, headers, body, timeout=timeout)
        return results[0] if results else {}

    def renew(self, timeout: Optional[float] = None) -> float:
        """Make the lock of the group begin anew, and return how long it lasts. 0: it has no lock."""
        return float(self._command("group.renew", timeout=timeout).get("remaining_ms", 0)) / 1000

    def hold(self) -> Hold:
        """Return a context manager that renews the lock, now and in the background."""
        return self._begin("group.renew", self.renew)

    def release(self) -> None:
        """Give the group up. What is not settled returns, which is no failure; the consumer may be given it again."""
        self._give_up(lambda: self._command("group.release"), self._client.timeout)

    def state(self) -> bytes:
        """Return the state of the group; empty: there is none."""
        return base64.b64decode(self._command("group.get-state").get("state", ""))

    def set_state(self, state: bytes) -> None:
        """Keep bytes with the group for whoever holds it next; none: the state is removed."""
        self._command("group.set-state", state)


class Session(Group):
    """A group with its messages in order, which a consumer receives that takes no other. A context manager; iterating
    ends when the group has been given up, since nothing of it is left."""

    def __init__(self, client: Client, consumer: Consumer, first: Message, group_id: str) -> None:
        super().__init__(client, consumer.queue, consumer.tag, group_id)
        self._consumer = consumer
        self._first: Optional[Message] = first
        self._lock = threading.Lock()
        self._unsettled: Set[int] = {first.delivery_tag}

    def receive(self, timeout: Optional[float] = None) -> Optional[Message]:
        """Wait for the next message of the group; None: there was none in time.

        Raises :class:`SessionEnded` when the group has been given up.
        """
        message, self._first = self._first, None
        if message is None:
            message = self._consumer.receive(timeout)
        if message is None:
            return None
        with self._lock:
            self._unsettled.add(message.delivery_tag)
        if message.group_id != self.group_id:  # it returns when the session is closed
            raise SessionEnded(f"group {self.group_id} has been given up")
        message._settled = self._settled
        return message

    def _settled(self, tag: int) -> None:
        with self._lock:
            self._unsettled.discard(tag)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.receive()
            except SessionEnded:
                return
            if message is not None:
                yield message

    def close(self) -> None:
        """Cancel the consumer and return what it has not settled, which is no failure. The group is free then."""
        self._end()
        self._consumer.cancel()
        with self._lock:
            self._unsettled.update(m.delivery_tag for m in self._consumer.left())
            tags = iter(sorted(self._unsettled))
        while some := list(itertools.islice(tags, _MAX_TAGS)):
            try:
                self._client.command("message.settle", {"x-delivery-tags": some, "x-outcome": "requeue"})
            except LockLost:
                pass  # so it has returned already
            for tag in some:
                self._settled(tag)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self._client.is_open:
            self.close()
