"""What of a cluster is asked and ordered through the user's own `kubectl`.

With the user's own rights and context. Called by the plugin (`cluster_jobs`), by `doctor` and by
`preflight`.
"""

import json
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

from moorage.cli.output import waiting_bar

JOBS, SNAPSHOTS = "statefulsparkjobs.moorage.dev", "statefulsparksnapshots.moorage.dev"
OPERATORS = "app.kubernetes.io/part-of=moorage"
"""What the chart labels all of its own with, whatever the release and its shards are called."""
ANSWER_SECONDS = 20.0
LOOK_SECONDS = 1.0
_LOOKS = 10
"""In a row that may fail, while something is waited for."""
_FOR_GOOD = ("(NotFound)", "(Forbidden)", "Unauthorized", "logged in", "not installed")
"""In what kubectl says where asking again is in vain."""

_NO_KUBECTL = "kubectl is not installed: install it, and put it on PATH"
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")
_CONTEXTS = "check the kubeconfig and the context: kubectl config get-contexts"
_TODO = (
    ("did you specify the right host", _CONTEXTS),
    ("Unable to connect to the server", _CONTEXTS),
    ("error: context ", _CONTEXTS),
    ("error loading config file", "correct the file, or name another with KUBECONFIG"),
    ("no answer in time", "see whether the API server answers: kubectl cluster-info"),
    ("doesn't have a resource type", "Moorage is not installed there: docs/install.md"),
    ("(Forbidden)", "ask for this right, or name another namespace with -n"),
    ("Unauthorized", "log in to the cluster anew"),
    ("must be logged in", "log in to the cluster anew"),
)
"""What to do about what kubectl says, by a part of it."""

Json = dict[str, Any]
_Seen = TypeVar("_Seen")
Ask = Callable[..., "subprocess.CompletedProcess[str]"]
"""Calls kubectl with arguments and perhaps `input`; `FileNotFoundError` where there is none."""

Forward = Callable[[str, int], AbstractContextManager[int]]
"""A port of this machine that leads to a Service's while it is open; raises Refused."""


class Refused(Exception):
    """The cluster, or what is asked for, does not allow it; the text says what to do."""


def kubectl_of(
    context: str | None, namespace: str | None = None, seconds: float = ANSWER_SECONDS
) -> Ask:
    """Calls the user's kubectl there, which has so many seconds for an answer."""
    where = _place(context, namespace)

    def ask(arguments: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
        command = ["kubectl", *where, f"--request-timeout={seconds / 2:g}s", *arguments]
        try:
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                input=text,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", "no answer in time")

    return ask


def forward_of(context: str | None, namespace: str | None = None) -> Forward:
    """Leads ports of this machine to Services there."""
    where = _place(context, namespace)

    @contextmanager
    def forward(service: str, port: int) -> Iterator[int]:
        command = ["kubectl", *where, "port-forward", f"service/{service}", f":{port}"]
        try:
            process = subprocess.Popen(
                [*command, "--address=127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except FileNotFoundError:
            raise Refused(_NO_KUBECTL) from None
        said: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process, said.put), daemon=True)
        reader.start()
        try:
            yield _forwarded(said)
        finally:
            process.terminate()
            process.wait()
            reader.join()

    return forward


def _read(process: "subprocess.Popen[str]", put: Callable[[str], None]) -> None:
    """All that kubectl says, for else it waits; nothing is its end."""
    with process.stdout or nullcontext() as lines:
        for line in lines or ():
            put(line)
    put("")


def _forwarded(said: "queue.SimpleQueue[str]") -> int:
    """The port of this machine. Raises Refused: there is none, or not in time."""
    end, last = time.monotonic() + ANSWER_SECONDS, ""
    while True:
        try:
            line = said.get(timeout=max(end - time.monotonic(), 0.0))
        except queue.Empty:
            raise Refused("no answer in time") from None
        if found := _FORWARDED.match(line):
            return int(found[1])
        if not line:
            raise Refused(_with_advice(last_line(last)))
        last = line


def _place(context: str | None, namespace: str | None) -> list[str]:
    where = [f"--context={context}"] if context else []
    return [*where, f"--namespace={namespace}"] if namespace else where


def last_line(text: str) -> str:
    """What kubectl says in the end is why it failed."""
    return (text.strip().splitlines() or ["kubectl said nothing"])[-1]


def _with_advice(said: str) -> str:
    """What kubectl says, and what to do about it where that is known."""
    return next((f"{said}; {todo}" for part, todo in _TODO if part in said), said)


class Cluster:
    """Objects of a namespace, by kubectl.

    Args:
        pause: waits so many seconds.
        clock: seconds that only go forward.
        forward: leads a port of this machine to that of a Service.
    """

    def __init__(
        self,
        ask: Ask,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        forward: Forward | None = None,
    ) -> None:
        self.forward = forward or forward_of(None)
        self._ask = ask
        self._pause = pause
        self._clock = clock

    def get(self, kind: str, name: str) -> Json:
        """One object; refused where there is none, with those of its kind that there are."""
        try:
            found: Json = json.loads(self._said(["get", kind, name, "-o", "json"]))
        except Refused as error:
            if kind not in {JOBS, SNAPSHOTS} or "(NotFound)" not in str(error):
                raise
            raise Refused(f"{error}; {self._others(kind, name)}") from error
        return found

    def _others(self, kind: str, name: str) -> str:
        try:
            names = [one["metadata"]["name"] for one in self.list(kind)]
        except Refused:
            names = []
        if not names:
            return "there is none in this namespace; -n names another"
        near = get_close_matches(name, names, n=1)
        return f"did you mean {near[0]}?" if near else f"there is {', '.join(names[:5])}"

    def list(self, kind: str, selector: str = "", *, everywhere: bool = False) -> list[Json]:
        """All objects of a kind, of a selector's where one is given; or of all namespaces."""
        chosen = ["-l", selector] if selector else []
        chosen += ["--all-namespaces"] if everywhere else []
        found: list[Json] = json.loads(self._said(["get", kind, *chosen, "-o", "json"]))["items"]
        return found

    def create(self, document: Json) -> Json:
        """Make an object; refused where there is one."""
        told = self._said(["create", "-f", "-", "-o", "json"], json.dumps(document))
        made: Json = json.loads(told)
        return made

    def patch(self, kind: str, name: str, change: Json, namespace: str = "") -> Json:
        """Change fields of an object (merge patch)."""
        words = ["patch", kind, name, "--type=merge", "-p", json.dumps(change), "-o", "json"]
        words += [f"--namespace={namespace}"] if namespace else []
        changed: Json = json.loads(self._said(words))
        return changed

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete an object, and do not wait for it; one that is gone is as well."""
        place = [f"--namespace={namespace}"] if namespace else []
        self._said(["delete", kind, name, *place, "--wait=false", "--ignore-not-found"])

    def wait_until_gone(self, kind: str, seconds: float) -> None:
        """Look until no object of a kind is left in any namespace.

        Raises Refused: not in `seconds`.
        """
        end = self._clock() + seconds
        with waiting_bar() as show:
            while left := self._patiently(partial(self.list, kind, everywhere=True)):
                show(f"{kind}: {len(left)} are being deleted")
                if self._clock() >= end:
                    names = ", ".join(one["metadata"]["name"] for one in left[:5])
                    raise Refused(f"not deleted yet: {names}; see why, and ask again")
                self._pause(LOOK_SECONDS)

    def wait(
        self, kind: str, name: str, seconds: float, outcome: Callable[[Json], str | None]
    ) -> Json:
        """Look at an object until `outcome` says nothing more; tells what it says as it changes.

        Raises Refused: not in `seconds`.
        """
        end, told = self._clock() + seconds, None
        with waiting_bar() as show:
            while True:
                found = self._patiently(partial(self.get, kind, name))
                now = outcome(found)
                if now is None:
                    return found
                if now != told:
                    show(f"{name}: {now}")
                    told = now
                if self._clock() >= end:
                    raise Refused(f"{name} is not there yet: {now}; it goes on, look again later")
                self._pause(LOOK_SECONDS)

    def _patiently(self, look: Callable[[], _Seen]) -> _Seen:
        """Look, and again where the API server is away for a moment: a long wait may see that."""
        for _ in range(_LOOKS):
            try:
                return look()
            except Refused as error:
                if any(word in str(error) for word in _FOR_GOOD):
                    raise
            self._pause(LOOK_SECONDS)
        return look()

    def _said(self, arguments: Sequence[str], text: str = "") -> str:
        try:
            answer = self._ask(arguments, text)
        except FileNotFoundError:
            raise Refused(_NO_KUBECTL) from None
        if answer.returncode:
            raise Refused(_with_advice(last_line(answer.stderr)))
        return answer.stdout


def condition(found: Json, kind: str) -> Json:
    """A condition of an object; empty where it has none."""
    conditions = found.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})
