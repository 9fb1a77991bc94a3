"""The client, its consumers and their messages."""
from __future__ import annotations

import copy
import json
import queue as queues
import threading
import uuid
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import datetime
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Type, Union

import pika

from ._errors import Closed, QuorateError, Refused, SessionEnded, UnknownOutcome, refusal
from ._hold import Hold, Holder
from ._session import Group, Session

_EXCHANGE = "amq.quorate.command"
_REPLIES = "amq.rabbitmq.reply-to"


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _when(delay: Optional[float], at: Optional[datetime], name: str) -> Dict[str, Any]:
    """Return the header that says when a message is ready."""
    if delay is not None and at is not None:
        raise ValueError("either delay or at")
    if delay is not None:
        return {name: _milliseconds(delay)}
    if at is not None:
        return {"x-opt-delivery-time": _milliseconds(at.timestamp())}
    return {}


def _place(queue: Optional[str], exchange: Optional[str], schedule_id: str) -> Dict[str, Any]:
    """Return the headers that name a scheduled message."""
    if (queue is None) == (exchange is None):
        raise ValueError("either queue or exchange")
    where, name = ("x-exchange", exchange) if queue is None else ("x-queue", queue)
    return {where: name, "x-schedule-id": schedule_id}


class Client:
    """A connection to a node, with one channel, and its commands. A context manager.

    ``parameters`` are pika's; ``timeout`` bounds each call. The broker gives a command up after five seconds without a
    leader.
    """

    def __init__(self, parameters: pika.connection.Parameters, *, timeout: float = 10.0) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._pending: Set[Future[Any]] = set()
        self._holds: Set[Hold] = set()
        self._closed: Optional[QuorateError] = None
        # All below belongs to the thread.
        self._number = self._published = 0
        self._answers: Dict[str, Future[Any]] = {}
        self._confirms: Dict[int, Tuple[Future[Any], str]] = {}
        self._returned: Dict[str, Tuple[int, str]] = {}
        self._consumers: Dict[str, Consumer] = {}
        self._channel: Any = None
        opened: Future[Any] = Future()
        self._pending.add(opened)
        self._connection = pika.SelectConnection(
            parameters, on_open_callback=lambda connection: self._on_open(connection, opened),
            on_open_error_callback=lambda _, reason: self._on_closed(reason),
            on_close_callback=lambda _, reason: self._on_closed(reason))
        self._thread = threading.Thread(target=self._connection.ioloop.start, name="quorate", daemon=True)
        self._thread.start()
        try:
            self._result(opened, "connect", None)
            self.call("confirm_delivery", self._on_confirm)
            self.call("basic_consume", _REPLIES, self._on_answer, auto_ack=True)
        except BaseException:
            self.close()
            raise

    # The thread.

    def _on_open(self, connection: Any, opened: Future[Any]) -> None:
        def ready(channel: Any) -> None:
            self._channel = channel
            channel.add_on_return_callback(self._on_return)
            channel.add_on_cancel_callback(self._on_cancel)
            self._resolve(opened, None)

        connection.channel(on_open_callback=ready).add_on_close_callback(self._on_channel_closed)

    def _on_channel_closed(self, _: Any, reason: BaseException) -> None:
        self._fail(reason)
        if self._connection.is_open:
            self._connection.close()

    def _on_closed(self, reason: BaseException) -> None:
        self._fail(reason)
        self._connection.ioloop.stop()

    def _fail(self, reason: BaseException) -> None:
        """Answer all who wait that the channel is closed."""
        closed = Closed(f"the channel is closed: {reason!r}")
        closed.__cause__ = reason
        with self._lock:
            self._closed = self._closed or closed
            pending, self._pending = self._pending, set()
            holds = list(self._holds)
        for hold in holds:
            hold.end(closed)
        for future in pending:
            future.set_exception(closed)
        for consumer in list(self._consumers.values()):
            consumer._end(closed)

    def _on_answer(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        future = self._answers.pop(properties.correlation_id, None)
        if future is not None:
            self._resolve(future, json.loads(body))

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._returned[properties.message_id] = (method.reply_code, method.reply_text)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tags = [t for t in self._confirms if t <= method.delivery_tag] if method.multiple else [method.delivery_tag]
        for tag in tags:
            future, message_id = self._confirms.pop(tag, (None, ""))
            if future is not None:
                self._resolve(future, (method.NAME == "Basic.Ack", self._returned.pop(message_id, None)))

    def _on_cancel(self, frame: Any) -> None:
        consumer = self._consumers.pop(frame.method.consumer_tag, None)
        if consumer is not None:
            consumer._end(SessionEnded("the broker has cancelled the consumer"))

    def _publish(self, exchange: str, key: str, body: bytes, properties: pika.BasicProperties, mandatory: bool) -> int:
        self._channel.basic_publish(exchange, key, body, properties, mandatory=mandatory)
        self._published += 1
        return self._published

    def _resolve(self, future: Future[Any], value: Any) -> None:
        with self._lock:
            if future not in self._pending:
                return
            self._pending.discard(future)
        future.set_result(value)

    # Any thread.

    def _watch(self, hold: Hold) -> None:
        """Have a hold end with the channel."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            self._holds.add(hold)

    def _unwatch(self, hold: Hold) -> None:
        with self._lock:
            self._holds.discard(hold)

    def _submit(self, what: str, start: Callable[[Future[Any]], None], timeout: Optional[float] = None) -> Any:
        """Have the thread start something, and wait until it resolves the future."""
        future: Future[Any] = Future()

        def begin() -> None:
            try:
                start(future)
            except Exception as e:  # of pika, to the caller
                with self._lock:
                    if future not in self._pending:
                        return
                    self._pending.discard(future)
                future.set_exception(e)

        with self._lock:
            if self._closed is not None:
                raise self._closed
            self._pending.add(future)
            self._connection.ioloop.add_callback_threadsafe(begin)
        return self._result(future, what, timeout)

    def _result(self, future: Future[Any], what: str, timeout: Optional[float]) -> Any:
        try:
            return future.result(self.timeout if timeout is None else min(timeout, self.timeout))
        except FutureTimeout:
            with self._lock:
                self._pending.discard(future)
            future.cancel()
            raise UnknownOutcome(f"{what}: no answer in time") from None

    @property
    def is_open(self) -> bool:
        """Whether the channel is open."""
        return self._closed is None

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of pika's channel that has a callback, as ``queue_declare``, and return the broker's answer.

        What the broker refuses closes the channel, as always in AMQP: :class:`Closed`.
        """
        def start(future: Future[Any]) -> None:
            getattr(self._channel, method)(*args, callback=lambda frame: self._resolve(future, frame.method), **kwargs)

        return self._submit(method, start)

    def command(self, verb: str, headers: Mapping[str, Any], body: bytes = b"", *,
                timeout: Optional[float] = None) -> List[Dict[str, Any]]:
        """Send a command and return the results of its answer. The methods below do so for each verb."""
        def start(future: Future[Any]) -> None:
            self._number += 1
            number = str(self._number)
            self._answers[number] = future
            future.add_done_callback(lambda _: self._answers.pop(number, None))
            self._publish(_EXCHANGE, verb, body, pika.BasicProperties(
                reply_to=_REPLIES, correlation_id=number, headers=dict(headers)), False)

        if self._closed is not None:
            raise self._closed
        try:
            answer = self._submit(verb, start, timeout)
        except Closed as e:
            raise UnknownOutcome(f"{verb}: {e}") from e
        if not answer["ok"]:
            raise refusal(verb, answer)
        results: List[Dict[str, Any]] = answer.get("results", [])
        return results

    def publish(self, exchange: str, key: str, body: bytes, properties: Optional[pika.BasicProperties] = None) -> None:
        """Publish a message, and return when a majority of nodes has it.

        A message without an id is given one. One that is routed to no queue is :class:`Refused` with code 312.
        """
        message = copy.copy(properties or pika.BasicProperties())
        if not message.message_id:
            message.message_id = uuid.uuid4().hex

        def start(future: Future[Any]) -> None:
            self._confirms[self._publish(exchange, key, body, message, True)] = (future, message.message_id)

        if self._closed is not None:
            raise self._closed
        try:
            acked, returned = self._submit("publish", start)
        except Closed as e:
            raise UnknownOutcome(f"publish: {e}") from e
        if returned is not None:
            raise Refused("publish", returned[0], returned[1], [])
        if not acked:
            raise Refused("publish", 0, "nacked", [])

    def schedule(self, exchange: str, key: str, body: bytes, properties: Optional[pika.BasicProperties] = None, *,
                 delay: Optional[float] = None, at: Optional[datetime] = None, schedule_id: Optional[str] = None,
                 conflict: Optional[str] = None) -> None:
        """Publish a message that waits in its queues until a time: after ``delay`` seconds, or at ``at``.

        ``schedule_id`` is a name, unique in the queue, to cancel it by; ``conflict`` says what happens if another
        message has it: ``replace`` (the default), ``reject`` or ``ignore``.
        """
        message = copy.copy(properties or pika.BasicProperties())
        message.headers = {**(message.headers or {}), **_when(delay, at, "x-opt-delivery-delay")}
        if schedule_id is not None:
            message.headers["x-schedule-id"] = schedule_id
        if conflict is not None:
            message.headers["x-schedule-conflict"] = conflict
        self.publish(exchange, key, body, message)

    def cancel(self, schedule_id: str, *, queue: Optional[str] = None, exchange: Optional[str] = None) -> None:
        """Remove a scheduled message from a queue or a delayed exchange; it is never delivered then."""
        self.command("schedule.cancel", _place(queue, exchange, schedule_id))

    def reschedule(self, schedule_id: str, *, queue: Optional[str] = None, exchange: Optional[str] = None,
                   delay: Optional[float] = None, at: Optional[datetime] = None) -> None:
        """Give a scheduled message another time."""
        self.command("schedule.update", {**_place(queue, exchange, schedule_id), **_when(delay, at, "x-delay")})

    def fire(self, schedule_id: str, *, queue: Optional[str] = None, exchange: Optional[str] = None) -> None:
        """Make a scheduled message due now."""
        self.command("schedule.fire", _place(queue, exchange, schedule_id))

    def pause(self, queue: str, reason: str = "", duration: Optional[float] = None) -> None:
        """Stop handing out the messages of a queue, for a time or until it is resumed. Its publishers go on."""
        headers: Dict[str, Any] = {"x-queue": queue, "x-reason": reason}
        if duration is not None:
            headers["x-duration"] = _milliseconds(duration)
        self.command("queue.pause", headers)

    def resume(self, queue: str) -> None:
        """End a pause."""
        self.command("queue.resume", {"x-queue": queue})

    def consume(self, queue: str, *, arguments: Optional[Mapping[str, Any]] = None,
                tag: Optional[str] = None) -> Consumer:
        """Begin to consume. The prefetch is the channel's: ``client.call("basic_qos", prefetch_count=10)``."""
        consumer = Consumer(self, queue, tag or "quorate-" + uuid.uuid4().hex)

        def start(future: Future[Any]) -> None:
            self._consumers[consumer.tag] = consumer
            self._channel.basic_consume(
                queue, consumer._deliver, consumer_tag=consumer.tag, arguments=dict(arguments or {}),
                callback=lambda _: self._resolve(future, None))

        self._submit("consume", start)
        return consumer

    def receive_deferred(self, consumer: Consumer, tokens: Union[str, Sequence[str]]) -> None:
        """Have deferred messages delivered to a consumer, by the tokens under which they were deferred."""
        self.command("message.receive-deferred", {
            "x-queue": consumer.queue, "x-consumer-tag": consumer.tag,
            "x-deferral-tokens": [tokens] if isinstance(tokens, str) else list(tokens)})

    def accept(self, queue: str, group_id: Optional[str] = None, *, arguments: Optional[Mapping[str, Any]] = None,
               timeout: Optional[float] = None) -> Session:
        """Wait for a group that nobody holds, this one or the next, and for its first message.

        ``arguments`` are the consumer's: ``x-lock-duration`` and others. Raises :class:`TimeoutError` if there is none
        in time.
        """
        wanted = {} if group_id is None else {"x-group-id": group_id}
        consumer = self.consume(queue, arguments={**(arguments or {}), **wanted})
        first = consumer.receive(self.timeout if timeout is None else timeout)
        if first is not None and first.group_id:
            return Session(self, consumer, first, first.group_id)
        consumer.cancel()
        for message in ([first] if first else []) + consumer.left():
            message.requeue()
        if first is not None:
            raise ValueError("the next message is of no group")
        raise TimeoutError(f"no message of group {group_id}" if group_id else "no message of a free group")

    def group(self, consumer: Consumer, group_id: str) -> Group:
        """Return the calls of a group that a consumer of the program's own holds."""
        return Group(self, consumer.queue, consumer.tag, group_id)

    def message(self, token: str) -> Message:
        """Return the calls of a delivery, of any channel, by its lock token: the header ``x-lock-token`` that a
        consumer with ``x-delivery-info`` gets. It needs the permission to read the queue."""
        return Message(self, {"x-lock-token": token})

    def close(self) -> None:
        """Close the connection. What is not settled returns to its queue."""
        def start() -> None:
            if self._connection.is_open:
                self._connection.close()
            elif self._channel is None:  # it is not open yet
                self._on_closed(Closed("closed by the program"))

        if self._thread.is_alive():
            self._connection.ioloop.add_callback_threadsafe(start)
            self._thread.join(self.timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class Consumer:
    """A consumer, as a context manager and an iterator over its messages, which ends when it is cancelled."""

    def __init__(self, client: Client, queue: str, tag: str) -> None:
        self._client, self.queue, self.tag = client, queue, tag
        self._inbox: queues.SimpleQueue[Union[Message, QuorateError]] = queues.SimpleQueue()

    def _deliver(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self._inbox.put(Message(self._client, {"x-delivery-tag": method.delivery_tag}, method, properties, body))

    def _end(self, why: QuorateError) -> None:
        self._inbox.put(why)

    def receive(self, timeout: Optional[float] = None) -> Optional[Message]:
        """Wait for the next message; None: there was none in time.

        Raises :class:`Closed`, or :class:`SessionEnded` if the consumer is cancelled.
        """
        try:
            item = self._inbox.get(timeout=timeout)
        except queues.Empty:
            return None
        if isinstance(item, Message):
            return item
        self._inbox.put(item)  # for the next call
        raise item

    def left(self) -> List[Message]:
        """Return what has come and was not received."""
        found: List[Message] = []
        while True:
            try:
                item = self._inbox.get_nowait()
            except queues.Empty:
                self._inbox.put(SessionEnded("the consumer is cancelled"))
                return found
            if isinstance(item, Message):
                found.append(item)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.receive()
            except SessionEnded:
                return
            if message is not None:
                yield message

    def cancel(self) -> None:
        """Cancel the consumer. What it has got and not settled stays its own."""
        self._client.call("basic_cancel", self.tag)
        self._client._consumers.pop(self.tag, None)
        self._end(SessionEnded("the consumer is cancelled"))

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self._client.is_open:
            self.cancel()


class Message(Holder):
    """A delivery, whose settlements say whether they took effect."""

    def __init__(self, client: Client, which: Dict[str, Any], method: Any = None,
                 properties: Optional[pika.BasicProperties] = None, body: bytes = b"") -> None:
        super().__init__(client)
        self._which = which
        self._settled: Callable[[int], None] = lambda tag: None
        self.body = body
        self.properties = properties or pika.BasicProperties()
        self.headers: Dict[str, Any] = self.properties.headers or {}
        self.delivery_tag: int = method.delivery_tag if method else 0
        self.redelivered: bool = bool(method and method.redelivered)

    @property
    def group_id(self) -> str:
        """The group of the message; empty: it has none."""
        group = self.headers.get("x-group-id", self.properties.app_id)
        return "" if group is None else str(group)

    def renew(self, lock: Optional[float] = None, *, timeout: Optional[float] = None) -> float:
        """Make the lock begin anew, for a time or for as long as at first, and return how long it lasts. 0: there is
        no lock."""
        headers = dict(self._which)
        if lock is not None:
            headers["x-lock-duration"] = _milliseconds(lock)
        results = self._client.command("lock.renew", headers, timeout=timeout)
        return float(results[0].get("remaining_ms", 0) if results else 0) / 1000

    def hold(self, lock: Optional[float] = None) -> Hold:
        """Return a context manager that renews the lock, now and in the background, until the message is settled by
        one of the methods below."""
        return self._begin("lock.renew", lambda timeout: self.renew(lock, timeout=timeout))

    def ack(self) -> None:
        """Remove the message."""
        self._settle("message.settle", {"x-outcome": "ack"})

    def requeue(self) -> None:
        """Return the message to its place, which is no failure."""
        self._settle("message.settle", {"x-outcome": "requeue"})

    def reject(self) -> None:
        """Make the message a dead letter if its queue has a dead-letter exchange, and drop it otherwise."""
        self._settle("message.settle", {"x-outcome": "reject"})

    def dead_letter(self, reason: str, description: str = "") -> None:
        """As :meth:`reject`, with headers of the dead letter that say why."""
        self._settle("message.settle", {"x-outcome": "dead-letter", "x-reason": reason, "x-description": description})

    def retry(self, *, delay: Optional[float] = None, at: Optional[datetime] = None, failed: bool = True) -> None:
        """Return the message, to be ready again at a time. ``failed``: this counts for the delivery limit."""
        self._settle("message.retry", {**_when(delay, at, "x-delay"), "x-delivery-failed": failed})

    def defer(self, token: str, *, delay: Optional[float] = None, at: Optional[datetime] = None) -> None:
        """Put the message aside under a token that is unique in its queue, until somebody asks for it by that token
        or, with a time, it returns by itself."""
        self._settle("message.defer", {**_when(delay, at, "x-delay"), "x-deferral-token": token})

    def _settle(self, verb: str, headers: Dict[str, Any]) -> None:
        self._give_up(lambda: self._client.command(verb, {**self._which, **headers}), self._client.timeout)
        self._settled(self.delivery_tag)
