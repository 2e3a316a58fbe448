"""Calls to many state servers at once, from one thread.

Each server gets one message with all that is asked of it and answers with one. Decides who is
waited for, how long, and that others end early when one has failed. Called by the driver's fleet.
"""

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from moorage_state.errors import MoorageError, error_from_wire
from moorage_state.server.client import LONG_OPERATIONS, StateClient
from moorage_state.server.operations import Call, StateApi
from moorage_state.server.wire import (
    OPERATIONS,
    TOGETHER,
    encode_message,
    encode_together,
    reply_in,
    take_message,
)

_LOOK_SECONDS = 1.0
"""Between two looks for servers that are silent."""

_PIECE = 1 << 20
_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


@dataclass(slots=True)
class Answer:
    """What one server answered: results in the order of its calls, until an error if there was one.

    Calls that were not begun have no result.
    """

    results: list[Any] = field(default_factory=list)
    error: MoorageError | None = None


_STATE_API = [name for name in vars(StateApi) if not name.startswith("_")]


class InProcessClient(StateApi):
    """A host of this process where a connection to a server is asked for.

    Nothing is between caller and host, and `close` leaves the host as it is.
    """

    def __init__(self, host: StateApi) -> None:
        self._host = host
        for name in _STATE_API:
            setattr(self, name, getattr(host, name))

    @classmethod
    def of(cls, host: StateApi) -> "InProcessClient":
        """The connection to a host; its operations are the host's own."""
        made: Any = cls
        client: InProcessClient = made(host)
        return client

    def close(self) -> None:
        """Nothing: the host is its owner's."""

    def answer(self, calls: Sequence[Call], *, keep_going: bool) -> Answer:
        """Make the calls one after the other; see `exchange`."""
        answer = Answer()
        for call in calls:
            try:
                asked = self._host if call.lease is None else self._host.range(call.lease)
                answer.results.append(getattr(asked, call.operation)(*call.arguments))
            except MoorageError as error:
                answer.error = error
                if not keep_going:
                    break
        return answer


Client = StateClient | InProcessClient


def exchange(
    asked: Mapping[int, tuple[Client, Sequence[Call]]],
    *,
    seconds: float | None = None,
    keep_going: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, Answer]:
    """Make the calls, of servers side by side; returns when all have answered or failed.

    Args:
        asked: by index of a server, its client and what it is asked.
        seconds: for all of them together; who has not answered by then is not waited for, and its
            client is closed. None: each has the time of its client.
        keep_going: a server goes on with its calls after one that failed, and others too. Else no
            further call is begun anywhere after an error.
    """
    until = None if seconds is None else clock() + seconds
    with ExitStack() as stack, selectors.PollSelector() as selector:
        talks: dict[int, _Talk] = {}
        answers = {index: Answer() for index in asked}
        # In one order, so that two threads cannot hold up each other.
        for index, (client, calls) in sorted(asked.items()):
            if isinstance(client, InProcessClient):
                answers[index] = client.answer(calls, keep_going=keep_going)
                continue
            try:
                left = None if until is None else max(0.0, until - clock())
                sock = stack.enter_context(client.lent(left))
            except MoorageError as error:
                answers[index].error = error
                if not keep_going:
                    return answers
            else:
                talks[index] = _Talk(client, sock, calls, clock(), keep_going=keep_going)
        waiting = _Waiting(selector, talks, answers, clock, keep_going=keep_going)
        try:
            waiting.run(until)
        except BaseException as problem:
            # Half a message may be on its way: nothing sensible can follow it.
            for talk in talks.values():
                talk.client.broken_by(problem)
            raise
        return answers


class _Waiting:
    """All servers that have not answered yet."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        talks: "dict[int, _Talk]",
        answers: dict[int, Answer],
        clock: Callable[[], float],
        *,
        keep_going: bool,
    ) -> None:
        self._selector = selector
        self._talks = talks
        self._answers = answers
        self._clock = clock
        # After an error, unless calls go on: the others have been told.
        self._ending = keep_going

    def run(self, until: float | None) -> None:
        """Until there are none, or it is so late."""
        for index, talk in self._talks.items():
            self._selector.register(talk.socket, selectors.EVENT_READ, index)
        for index in list(self._talks):
            self._go_on(index, reads=False)
        looked = self._clock()
        while self._talks:
            now = self._clock()
            if until is not None and now >= until:
                self._give_up()
                return
            if now - looked >= _LOOK_SECONDS:
                looked = now
                self._look(now)
            left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - now)
            for key, _ in self._selector.select(left):
                self._go_on(key.data)

    def _go_on(self, index: int, *, reads: bool = True) -> None:
        talk = self._talks.get(index)
        if talk is None:
            return  # it has ended since
        try:
            answer = talk.go_on(self._clock(), reads=reads)
        except (OSError, EOFError) as problem:
            answer = Answer(error=talk.client.broken_by(problem))
        if answer is not None:
            self._done(index, answer)
        elif talk.socket.fileno() >= 0:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if talk.out else 0)
            if self._selector.get_key(talk.socket).events != events:
                self._selector.modify(talk.socket, events, index)

    def _done(self, index: int, answer: Answer) -> None:
        talk = self._talks.pop(index)
        # Also one that was closed meanwhile: it would be found ready again and again.
        self._selector.unregister(talk.socket)
        self._answers[index] = answer
        if answer.error is not None and not self._ending:
            self._ending = True
            for other, its in list(self._talks.items()):
                its.end_early()
                self._go_on(other)

    def _look(self, now: float) -> None:
        for index, talk in list(self._talks.items()):
            if talk.socket.fileno() < 0 or now - talk.heard >= talk.patience:
                problem = TimeoutError("timed out")
                self._done(index, Answer(error=talk.client.broken_by(problem)))

    def _give_up(self) -> None:
        for index, talk in list(self._talks.items()):
            talk.client.close()
            self._done(index, Answer(error=talk.client.broken_by(TimeoutError("timed out"))))


class _Talk:
    """One server's part: the message that goes out, and what has come of the answer.

    Attributes:
        out: what is still to be sent.
        heard: when something was sent or came last.
        patience: how many seconds of silence are too many.
    """

    def __init__(
        self,
        client: StateClient,
        sock: socket.socket,
        calls: Sequence[Call],
        now: float,
        *,
        keep_going: bool,
    ) -> None:
        self.client = client
        self.socket = sock
        self.out = memoryview(encode_message(*encode_together(calls, keep_going=keep_going)))
        self.heard = now
        long = any(call.operation in LONG_OPERATIONS for call in calls)
        self.patience = client.patience(long=long)
        self._calls = calls
        self._received = bytearray()
        self._answer: Answer | None = None
        self._replies = 1

    def end_early(self) -> None:
        """No call is needed that was not begun; the answer comes all the same."""
        if self._replies == 1:
            self._replies = 2
            ping = encode_message(*OPERATIONS["ping"].encode_request(()))
            self.out = memoryview(bytes(self.out) + ping)

    def go_on(self, now: float, *, reads: bool) -> Answer | None:
        """Send, and receive if it `reads`, what goes without waiting; the answer when it is whole.

        Raises:
            OSError, EOFError: the server is gone.
        """
        try:
            while self.out:
                self.out = self.out[self.socket.send(self.out) :]
                self.heard = now
        except _LATER:
            pass
        if not reads:
            return None
        try:
            while self._replies:
                piece = self.socket.recv(_PIECE)
                if not piece:
                    raise EOFError("the peer closed the connection")
                self.heard = now
                self._received += piece
                self._take()
        except _LATER:
            return None
        return self._answer

    def _take(self) -> None:
        while (message := take_message(self._received)) is not None:
            error = reply_in(message[0])
            if isinstance(error, bool):
                continue  # it gets on
            self._replies -= 1
            if self._answer is None:
                self._answer = self._read(error, message[1])

    def _read(self, error: dict[str, Any] | None, payload: bytearray) -> Answer:
        answer = Answer()
        if error is not None:
            return Answer(error=error_from_wire(error))
        replies = TOGETHER.decode_result(payload)
        for call, (problem, result) in zip(self._calls, replies, strict=False):
            if problem is not None:
                answer.error = answer.error or error_from_wire(problem)
                answer.results.append(None)
            else:
                decode = OPERATIONS[call.operation].decode_result
                answer.results.append(decode(memoryview(result)))
        return answer
