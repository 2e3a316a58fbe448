"""A small model of the lineage's log, small enough to visit every state that it can be in.

Drivers claim, complete checkpoints, retire and delete, as `LogWriter` and `CheckpointStore` do,
one request to the store at a time. Any of them may stand still for as long as it likes, crash and
start again; replies are lost, and requests arrive long after who sent them has given up. What may
never happen is in `problems_of`. Each rule of the protocol can be left out by its name, so that a
test can show that the exploration would notice.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

Request = tuple[Any, ...]

__all__ = ["AS_THEY_ARE", "Driver", "Rules", "World", "explore", "problems_of", "start"]


class Entry(NamedTuple):
    """One entry: `kind` is "fence", "checkpoint" or "retire"; `attempt` is its writer's own."""

    kind: str
    fence: int
    checkpoint: int
    attempt: tuple[int, int]


class Driver(NamedTuple):
    """One driver's process; `step` is the request that it makes next."""

    step: str = "read"
    known: int = 0
    fence: int = 0
    attempts: int = 0
    doubt: tuple[int, Entry] | None = None
    checkpoint: int = 0
    base: int = 0
    to_complete: int = 1
    victims: tuple[int, ...] = ()


class World(NamedTuple):
    """All there is. `manifests` are (id, fence of the writer, base); `files` (id, fence)."""

    log: tuple[Entry, ...]
    manifests: frozenset[tuple[int, int, int]]
    files: frozenset[tuple[int, int]]
    flying: frozenset[Request]
    drivers: tuple[Driver, ...]
    faults: int
    crashes: int


class Rules(NamedTuple):
    """The rules of the protocol; False leaves one out."""

    puts_if_absent: bool = True
    knows_own_attempt: bool = True
    refuses_lower_fence: bool = True
    retires_before_deleting: bool = True
    keeps_what_is_referenced: bool = True
    takes_another_id: bool = True


def live(log: tuple[Entry, ...]) -> list[Entry]:
    """The checkpoints that exist, oldest first."""
    retired = {e.checkpoint for e in log if e.kind == "retire"}
    return [e for e in log if e.kind == "checkpoint" and e.checkpoint not in retired]


def problems_of(world: World) -> list[str]:
    """What is wrong in this state."""
    found = []
    for at, entry in enumerate(world.log):
        before = world.log[:at]
        highest = max((e.fence for e in before if e.kind == "fence"), default=0)
        if entry.attempt in [e.attempt for e in before]:
            found.append(f"written twice: {entry}")
        if entry.fence < highest or (entry.kind == "fence" and entry.fence == highest):
            found.append(f"written behind a later fence: {entry}")
        same = (e for e in before if (e.kind, e.checkpoint) == (entry.kind, entry.checkpoint))
        if entry.kind == "checkpoint" and any(same):
            found.append(f"id used twice: {entry}")
    for entry in live(world.log):
        manifest = manifest_of(world, entry.checkpoint)
        if manifest is None or manifest[1] != entry.fence:
            found.append(f"no manifest of its writer: {entry}")
        elif not references(world, manifest) <= world.files:
            found.append(f"a file is gone: {entry}")
    holders = [d.fence for d in world.drivers if d.fence]
    if len(holders) != len(set(holders)):
        found.append("two drivers with one fence")
    return found


def manifest_of(world: World, checkpoint: int) -> tuple[int, int, int] | None:
    """The manifest under this id, whoever put it."""
    return next((m for m in world.manifests if m[0] == checkpoint), None)


def references(world: World, manifest: tuple[int, int, int]) -> frozenset[tuple[int, int]]:
    """A checkpoint has a file of its own and goes on using the one that its base has."""
    own, fence, base = manifest
    of_base = [
        (e.checkpoint, e.fence)
        for e in world.log
        if e.kind == "checkpoint" and e.checkpoint == base
    ]
    return frozenset([(own, fence), *of_base])


AS_THEY_ARE = Rules()


def start(drivers: int, complete: int, *, faults: int, crashes: int) -> World:
    """Drivers on an empty store.

    Args:
        complete: checkpoints that each of them completes in all its lives.
        faults: replies that are lost, or requests that are late, in all.
        crashes: in all.
    """
    one = Driver(to_complete=complete)
    empty: frozenset[Any] = frozenset()
    return World((), empty, empty, empty, (one,) * drivers, faults, crashes)


def explore(world: World, rules: Rules = AS_THEY_ARE) -> tuple[int, str]:
    """Visit all states; returns how many there are, and the first problem with the way to it."""
    came: dict[World, tuple[World | None, str]] = {world: (None, "start")}
    newest = [world]
    while newest:
        following = []
        for state in newest:
            for what, then in steps(state, rules):
                if then in came:
                    continue
                came[then] = (state, what)
                # Log, manifests and files: what is right in them stays so until they change.
                if then[:3] != state[:3] and (problems := problems_of(then)):
                    return len(came), "; ".join([*way_to(then, came), *problems])
                following.append(then)
        newest = following
    return len(came), ""


def way_to(world: World, came: dict[World, tuple[World | None, str]]) -> list[str]:
    """What happened until this state, in order."""
    way = []
    at: World | None = world
    while at is not None:
        at, what = came[at]
        way.append(what)
    return way[::-1]


def steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """What can happen next: somebody's request, a crash, or the arrival of a late one."""
    for request in world.flying:
        landed = world._replace(flying=world.flying - {request})
        yield f"late {request[0]} arrives", applied(landed, request, rules)
    for number, driver in enumerate(world.drivers):
        if driver.step == "end":
            continue
        yield from (
            (f"{number}: {what}", then) for what, then in _steps_of(world, number, driver, rules)
        )
        if world.crashes and driver.step != "read":
            again = Driver(attempts=driver.attempts, to_complete=driver.to_complete)
            yield (
                f"{number}: crashes",
                _with(world, number, again)._replace(crashes=world.crashes - 1),
            )


def _with(world: World, number: int, driver: Driver) -> World:
    drivers = world.drivers
    return world._replace(drivers=(*drivers[:number], driver, *drivers[number + 1 :]))


def applied(world: World, request: Request, rules: Rules) -> World:
    """The store after a request has reached it."""
    match request:
        case ("put", seq, entry):
            if seq == len(world.log) + 1:
                return world._replace(log=(*world.log, entry))
            if not rules.puts_if_absent:
                return world._replace(log=(*world.log[: seq - 1], entry, *world.log[seq:]))
        case ("manifest", manifest):
            if manifest_of(world, manifest[0]) is None:
                return world._replace(manifests=world.manifests | {manifest})
        case ("delete", files, manifests):
            return world._replace(files=world.files - files, manifests=world.manifests - manifests)
    return world


def _sent(world: World, request: Request, rules: Rules) -> Iterator[tuple[str, World]]:
    """A request whose sender gets no answer: it was done, or is done later, or never."""
    if world.faults:
        less = world._replace(faults=world.faults - 1)
        yield "reply lost", applied(less, request, rules)
        yield "delayed", less._replace(flying=less.flying | {request})


def _steps_of(
    world: World, number: int, driver: Driver, rules: Rules
) -> Iterator[tuple[str, World]]:
    match driver.step:
        case "read":
            yield "reads", _with(world, number, driver._replace(known=len(world.log), step="claim"))
        case "claim":
            yield from _claim(world, number, driver, rules)
        case "begin":
            begun = _begun(world, driver)
            # Nobody else has files of this name, so nobody can tell when they arrive.
            file = {(begun.checkpoint, begun.fence)} if begun.step != "end" else set()
            then = world._replace(files=world.files | file)
            yield "uploads", _with(then, number, begun)
        case "manifest":
            yield from _put_manifest(world, number, driver, rules)
        case "complete" | "retire":
            yield from _append(world, number, driver, rules)
        case "look":
            yield from _look(world, number, driver, rules)
        case "delete":
            yield from _delete(world, number, driver, rules)


def _claim(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    known = world.log[: driver.known]
    fence = max((e.fence for e in known if e.kind == "fence"), default=0) + 1
    entry = Entry("fence", fence, 0, (number, driver.attempts))
    tried = driver._replace(attempts=driver.attempts + 1)
    request = ("put", driver.known + 1, entry)
    # No answer: the process begins anew.
    again = Driver(attempts=tried.attempts, to_complete=driver.to_complete)
    for what, then in _sent(world, request, rules):
        yield f"claims, {what}", _with(then, number, again)
    then = applied(world, request, rules)
    mine = then.log[driver.known] == entry
    yield (
        "claims",
        _with(
            then,
            number,
            tried._replace(
                known=driver.known + 1,
                fence=fence if mine else 0,
                step="begin" if mine else "claim",
            ),
        ),
    )


def _begun(world: World, driver: Driver) -> Driver:
    """What is known says what to go on from, and the listing which ids are taken."""
    if driver.to_complete == 0:
        return driver._replace(step="end")
    known = world.log[: driver.known]
    base = max((e.checkpoint for e in live(known)), default=0)
    taken = [e.checkpoint for e in known] + [m[0] for m in world.manifests] + [driver.checkpoint]
    return driver._replace(step="manifest", base=base, checkpoint=max(taken, default=0) + 1)


def _put_manifest(
    world: World, number: int, driver: Driver, rules: Rules
) -> Iterator[tuple[str, World]]:
    manifest = (driver.checkpoint, driver.fence, driver.base)
    for what, then in _sent(world, ("manifest", manifest), rules):
        yield f"puts a manifest, {what}", then  # and puts it again
    there = manifest_of(world, driver.checkpoint)
    if there is None or there == manifest or not rules.takes_another_id:
        then = applied(world, ("manifest", manifest), rules)
        yield "puts a manifest", _with(then, number, driver._replace(step="complete"))
    else:
        yield "finds another's manifest", _with(world, number, driver._replace(step="begin"))


def _append(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    """One put of `LogWriter.append`; what is in doubt is settled first."""
    if driver.doubt is None:
        kind = "checkpoint" if driver.step == "complete" else "retire"
        checkpoint = driver.checkpoint if kind == "checkpoint" else driver.victims[0]
        entry = Entry(kind, driver.fence, checkpoint, (number, driver.attempts))
        driver = driver._replace(attempts=driver.attempts + 1, doubt=(driver.known + 1, entry))
    assert driver.doubt is not None
    seq, entry = driver.doubt
    if seq > driver.known:
        for what, then in _sent(world, ("put", seq, entry), rules):
            yield f"appends {entry.kind}, {what}", _with(then, number, driver)
        world = applied(world, ("put", seq, entry), rules)
        driver = driver._replace(known=seq)
    if _fenced(world, driver, rules):
        yield "is fenced", _with(world, number, driver._replace(step="end", doubt=None, fence=0))
    elif world.log[seq - 1] == entry and rules.knows_own_attempt:
        yield f"appended {entry.kind}", _with(world, number, _appended(world, driver, rules))
    else:
        doubt = (driver.known + 1, entry)
        yield "appends further on", _with(world, number, driver._replace(doubt=doubt))


def _fenced(world: World, driver: Driver, rules: Rules) -> bool:
    known = world.log[: driver.known]
    return rules.refuses_lower_fence and any(
        e.kind == "fence" and e.fence > driver.fence for e in known
    )


def _appended(world: World, driver: Driver, rules: Rules) -> Driver:
    driver = driver._replace(doubt=None)
    if driver.step == "complete":
        older = [e.checkpoint for e in live(world.log[: driver.known])][:-1]
        driver = driver._replace(to_complete=driver.to_complete - 1, victims=tuple(older))
        following = "retire" if rules.retires_before_deleting else "look"
        return driver._replace(step=following if older else "begin")
    if len(driver.victims) > 1:
        return driver._replace(victims=driver.victims[1:])
    return driver._replace(step="look", victims=())


def _look(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    """Read what others appended, just before the deletion."""
    driver = driver._replace(known=len(world.log))
    if _fenced(world, driver, rules):
        yield "is fenced", _with(world, number, driver._replace(step="end", fence=0))
    else:
        yield "looks", _with(world, number, driver._replace(step="delete"))


def _delete(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    known = world.log[: driver.known]
    kept = [e for e in live(known) if e.checkpoint not in driver.victims]
    needed: frozenset[tuple[int, int]] = frozenset()
    for entry in kept:
        manifest = manifest_of(world, entry.checkpoint)
        if manifest is not None and rules.keeps_what_is_referenced:
            needed |= references(world, manifest)
    gone = [e for e in known if e.kind == "checkpoint" and e not in kept]
    # A manifest that is not the entry's is another's, put late: nobody knows what it references.
    going = [m for e in gone if (m := manifest_of(world, e.checkpoint)) and m[1] == e.fence]
    files = frozenset().union(*(references(world, m) for m in going)) - needed
    request = ("delete", files, frozenset(going))
    after = driver._replace(step="begin", victims=())
    for what, then in _sent(world, request, rules):
        yield f"deletes, {what}", _with(then, number, after)
    yield "deletes", _with(applied(world, request, rules), number, after)
