"""A small model of the lineage's log, small enough to visit every state that it can be in.

Drivers claim, complete checkpoints, retire and delete, rescale while they run, and put the log
together, as `LogWriter` and `CheckpointStore` do, one request to the store at a time. Any of them
may stand still for as long as it likes, crash and start again; replies are lost, and requests
arrive long after who sent them has given up, also where what they find in the way has been deleted.
What may never happen is in `problems_of`. Each rule of the protocol can be left out by its name, so
that a test can show that the exploration would notice.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

Request = tuple[Any, ...]

__all__ = ["AS_THEY_ARE", "Driver", "Rules", "World", "explore", "problems_of", "start"]


class Entry(NamedTuple):
    """One entry: a fence, checkpoint, retire, rescaled or compacted one.

    `attempt` is its writer's own; `width` the number of subtasks that a checkpoint is of, or that
    there are from a rescaled one on.
    """

    kind: str
    fence: int
    checkpoint: int
    attempt: tuple[int, int]
    width: int = 0


class Driver(NamedTuple):
    """One driver's process; `step` is the request that it makes next.

    It knows the first `known` entries, but for those in `misread`: what came to lie under a number
    whose entry had been deleted.
    """

    step: str = "read"
    begins: int = 0
    known: int = 0
    misread: tuple[tuple[int, Entry], ...] = ()
    fence: int = 0
    attempts: int = 0
    doubt: tuple[int, Entry] | None = None
    checkpoint: int = 0
    base: int = 0
    to_complete: int = 1
    victims: tuple[int, ...] = ()
    compacted: int = 0
    width: int = 0
    to_width: int = 0


class World(NamedTuple):
    """All there is. `manifests` are (id, fence of the writer, base); `files` (id, fence).

    `log` is what was ever written to it, in order: what nobody may see differently. In the store
    the numbers in `gone` are deleted, but for what came to lie there later, in `ghosts`. `moved`
    are the marks: pairs of an old base and the new one.
    """

    log: tuple[Entry, ...]
    gone: frozenset[int]
    ghosts: frozenset[tuple[int, Entry]]
    moved: frozenset[tuple[int, int]]
    manifests: frozenset[tuple[int, int, int]]
    files: frozenset[tuple[int, int]]
    flying: frozenset[Request]
    drivers: tuple[Driver, ...]
    faults: int
    crashes: int
    compactions: int
    rescales: int = 0
    problem: str = ""


class Rules(NamedTuple):
    """The rules of the protocol; False leaves one out."""

    puts_if_absent: bool = True
    knows_own_attempt: bool = True
    refuses_lower_fence: bool = True
    retires_before_deleting: bool = True
    keeps_what_is_referenced: bool = True
    takes_another_id: bool = True
    confirms_what_it_put: bool = True
    marks_before_it_clears: bool = True
    minds_the_mark_of_another: bool = True
    claims_from_the_beginning: bool = True
    rescales_when_it_is_logged: bool = True
    starts_as_the_log_says: bool = True


def live(log: tuple[Entry, ...]) -> list[Entry]:
    """The checkpoints that exist, oldest first."""
    retired = {e.checkpoint for e in log if e.kind == "retire"}
    return [e for e in log if e.kind == "checkpoint" and e.checkpoint not in retired]


def problems_of(world: World) -> list[str]:
    """What is wrong in this state."""
    found = [world.problem] if world.problem else []
    found += _problems_of_log(world)
    for entry in live(world.log):
        manifest = manifest_of(world, entry.checkpoint)
        if manifest is None or manifest[1] != entry.fence:
            found.append(f"no manifest of its writer: {entry}")
        elif not references(world, manifest) <= world.files:
            found.append(f"a file is gone: {entry}")
    base = base_of(world)
    if base and world.log[base - 1].kind != "compacted":
        found.append(f"the log does not begin with all that was before: {base}")
    if any(seq >= max(base, 1) for seq in world.gone):
        found.append("an entry is gone that nothing stands for")
    holders = [d.fence for d in world.drivers if d.fence]
    if len(holders) != len(set(holders)):
        found.append("two drivers with one fence")
    return found


def _problems_of_log(world: World) -> Iterator[str]:
    for at, entry in enumerate(world.log):
        before = world.log[:at]
        highest = max((e.fence for e in before if e.kind == "fence"), default=0)
        if entry.attempt in [e.attempt for e in before]:
            yield (f"written twice: {entry}")
        if entry.fence < highest or (entry.kind == "fence" and entry.fence == highest):
            yield (f"written behind a later fence: {entry}")
        same = (e for e in before if (e.kind, e.checkpoint) == (entry.kind, entry.checkpoint))
        if entry.kind == "checkpoint" and any(same):
            yield (f"id used twice: {entry}")
        if entry.kind == "checkpoint" and entry.width != width_of(before):
            yield (f"of another layout than the log says: {entry}")
        if entry.kind == "rescaled" and entry.checkpoint != _newest(before):
            yield (f"a rescale begins from what is not the newest: {entry}")


def width_of(log: tuple[Entry, ...]) -> int:
    """How many subtasks there are; the manifest of the job says one."""
    return next((e.width for e in reversed(log) if e.kind == "rescaled"), 1)


def _newest(log: tuple[Entry, ...]) -> int:
    return max((e.checkpoint for e in live(log)), default=0)


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


def base_of(world: World) -> int:
    """Where the log begins by now: the marks from the very first on."""
    marks, base = dict(world.moved), 0
    while base in marks:
        base = marks[base]
    return base


def lies_at(world: World, seq: int) -> Entry | None:
    """What the store has under this number."""
    if seq in world.gone:
        return dict(world.ghosts).get(seq)
    return world.log[seq - 1] if seq <= len(world.log) else None


def known_of(world: World, driver: Driver) -> tuple[Entry, ...]:
    """What the driver takes for the log."""
    if not driver.misread:
        return world.log[: driver.known]
    misread = dict(driver.misread)
    known = enumerate(world.log[: driver.known], 1)
    return tuple(misread.get(seq, entry) for seq, entry in known)


AS_THEY_ARE = Rules()


def start(
    drivers: int,
    complete: int,
    *,
    faults: int,
    crashes: int,
    compactions: int = 0,
    rescales: int = 0,
) -> World:
    """Drivers on an empty store.

    Args:
        complete: checkpoints that each of them completes in all its lives.
        faults: replies that are lost, or requests that are late, in all.
        crashes: in all.
        compactions: in all.
        rescales: in all, each to one subtask more.
    """
    one = Driver(to_complete=complete)
    empty: frozenset[Any] = frozenset()
    return World(
        log=(),
        gone=empty,
        ghosts=empty,
        moved=empty,
        manifests=empty,
        files=empty,
        flying=empty,
        drivers=(one,) * drivers,
        faults=faults,
        crashes=crashes,
        compactions=compactions,
        rescales=rescales,
    )


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
                # The store: what is right in it stays so until it changes.
                changed = then[:6] != state[:6] or then.problem
                if changed and (problems := problems_of(then)):
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
            again = _with(world, number, _anew(driver))
            yield f"{number}: crashes", again._replace(crashes=world.crashes - 1)


def _with(world: World, number: int, driver: Driver) -> World:
    drivers = world.drivers
    return world._replace(drivers=(*drivers[:number], driver, *drivers[number + 1 :]))


def applied(world: World, request: Request, rules: Rules) -> World:
    """The store after a request has reached it."""
    match request:
        case ("put", seq, entry):
            return _put(world, seq, entry, rules)
        case ("manifest", manifest) if manifest_of(world, manifest[0]) is None:
            return world._replace(manifests=world.manifests | {manifest})
        case ("mark", base, to) if base not in dict(world.moved):
            return world._replace(moved=world.moved | {(base, to)})
        case ("clear", base):
            ghosts = frozenset(ghost for ghost in world.ghosts if ghost[0] >= base)
            return world._replace(gone=world.gone | set(range(1, base)), ghosts=ghosts)
        case ("delete", files, manifests):
            return world._replace(files=world.files - files, manifests=world.manifests - manifests)
    return world


def _put(world: World, seq: int, entry: Entry, rules: Rules) -> World:
    if seq == len(world.log) + 1:
        return world._replace(log=(*world.log, entry))
    if lies_at(world, seq) is None:
        return world._replace(ghosts=world.ghosts | {(seq, entry)})
    if not rules.puts_if_absent:
        return world._replace(log=(*world.log[: seq - 1], entry, *world.log[seq:]))
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
    return _STEPS[driver.step](world, number, driver, rules)


def _read(world: World, number: int, driver: Driver, _: Rules) -> Iterator[tuple[str, World]]:
    if driver.step == "read":
        # The rest is read later, when what lies there may be gone.
        found = driver._replace(begins=base_of(world), step="read on")
        yield "finds the beginning", _with(world, number, found)
    else:
        again = max(driver.begins, 1) in world.gone
        read = driver._replace(step="read") if again else _read_on(world, driver)
        yield "reads", _with(world, number, read)


def _begin(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    if world.compactions and len(world.log) > driver.begins + 1:
        less = world._replace(compactions=world.compactions - 1)
        yield "compacts", _with(less, number, driver._replace(step="compact"))
    if world.rescales and _newest(known_of(world, driver)):
        less = world._replace(rescales=world.rescales - 1)
        to = driver._replace(to_width=driver.width + 1, step="rescale")
        if not rules.rescales_when_it_is_logged:
            # Its subtasks are others already, and what they do is logged whenever it is.
            to = to._replace(width=to.to_width, step="begin")
        yield "rescales", _with(less, number, to)
    begun = _begun(world, driver)
    # Nobody else has files of this name, so nobody can tell when they arrive.
    file = {(begun.checkpoint, begun.fence)} if begun.step != "end" else set()
    then = world._replace(files=world.files | file)
    yield "uploads", _with(then, number, begun)


def _read_on(world: World, driver: Driver) -> Driver:
    """All there is up to the first number that has nothing; what is gone looks like the end."""
    known = driver.known or max(driver.begins, 1) - 1
    misread = driver.misread
    while (entry := lies_at(world, known + 1)) is not None:
        known += 1
        if entry != world.log[known - 1]:
            misread = (*misread, (known, entry))
    return driver._replace(known=known, misread=misread, step="claim")


def _highest(entries: tuple[Entry, ...]) -> int:
    return max((e.fence for e in entries if e.kind == "fence"), default=0)


def _anew(driver: Driver) -> Driver:
    """The process begins anew, or as if it did."""
    return Driver(attempts=driver.attempts, to_complete=driver.to_complete)


def _claim(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    fence = _highest(known_of(world, driver)) + 1
    entry = Entry("fence", fence, 0, (number, driver.attempts))
    tried = driver._replace(attempts=driver.attempts + 1)
    seq = driver.known + 1
    request = ("put", seq, entry)
    for what, then in _sent(world, request, rules):
        yield f"claims, {what}", _with(then, number, _anew(tried))
    then = applied(world, request, rules)
    if lies_at(then, seq) == entry:
        tried = tried._replace(doubt=(seq, entry), step="confirm")
        yield "claims", _with(then, number, tried)
    else:
        # What lies there may be anything; what the log says by now, only the log says.
        anew = rules.claims_from_the_beginning
        after = _anew(tried) if anew else _learned(then, tried, seq)
        yield "finds another's entry", _with(then, number, after)


def _learned(world: World, driver: Driver, seq: int) -> Driver:
    """What lies under the number after those that are known is known as well."""
    entry = lies_at(world, seq)
    assert entry is not None
    misread = driver.misread
    if entry != world.log[seq - 1]:
        misread = (*misread, (seq, entry))
    return driver._replace(known=seq, misread=misread)


def _confirm(
    world: World, number: int, driver: Driver, rules: Rules
) -> Iterator[tuple[str, World]]:
    """A put counts when afterwards the log still begins where its writer thinks."""
    assert driver.doubt is not None
    seq, entry = driver.doubt
    if rules.confirms_what_it_put and driver.begins in dict(world.moved):
        if driver.fence == 0:
            yield "finds that the log moved", _with(world, number, _anew(driver))
            return
        driver = driver._replace(begins=base_of(world), known=len(world.log), misread=())
        if _fenced(world, driver, rules):
            gone = driver._replace(step="end", doubt=None, fence=0)
            yield "is fenced", _with(world, number, gone)
            return
    if world.log[seq - 1] != entry:
        world = world._replace(problem=f"taken for written and is not: {entry}")
    driver = driver._replace(known=max(driver.known, seq))
    if entry.kind == "fence":
        known = known_of(world, driver)
        width = width_of(known) if rules.starts_as_the_log_says else 1
        driver = driver._replace(fence=entry.fence, step="begin", doubt=None, width=width)
        yield "holds the fence", _with(world, number, driver)
    else:
        done = _appended(world, driver, entry, rules)
        yield f"appended {entry.kind}", _with(world, number, done)


def _move(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    request = ("mark", driver.begins, driver.compacted)
    for what, then in _sent(world, request, rules):
        yield f"marks, {what}", _with(then, number, driver)  # and marks it again
    then = applied(world, request, rules)
    there = dict(then.moved)[driver.begins]
    after = driver._replace(step="clear" if rules.marks_before_it_clears else "begin")
    if there != driver.compacted and rules.minds_the_mark_of_another:
        after = after._replace(begins=base_of(then), known=len(then.log), misread=())
        if _fenced(then, after, rules):
            yield "is fenced", _with(then, number, after._replace(step="end", fence=0))
            return
    else:
        after = after._replace(begins=driver.compacted)
    yield "marks", _with(then, number, after)


def _clear(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    base = driver.begins if rules.marks_before_it_clears else driver.compacted
    after = driver._replace(step="begin" if rules.marks_before_it_clears else "move")
    for what, then in _sent(world, ("clear", base), rules):
        yield f"clears, {what}", _with(then, number, after)
    yield "clears", _with(applied(world, ("clear", base), rules), number, after)


def _begun(world: World, driver: Driver) -> Driver:
    """What is known says what to go on from, and the listing which ids are taken."""
    if driver.to_complete == 0:
        return driver._replace(step="end")
    known = known_of(world, driver)
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
        driver = _refreshed(world, driver)
        if _fenced(world, driver, rules):
            gone = driver._replace(step="end", fence=0)
            yield "is fenced, and finds another's manifest", _with(world, number, gone)
        else:
            yield "finds another's manifest", _with(world, number, driver._replace(step="begin"))


def _append(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    """One put of `LogWriter.append`; what is in doubt is settled first."""
    if driver.doubt is None:
        attempt = (number, driver.attempts)
        entry = _entry(driver, known_of(world, driver), attempt)
        driver = driver._replace(attempts=driver.attempts + 1, doubt=(driver.known + 1, entry))
    assert driver.doubt is not None
    seq, entry = driver.doubt
    if seq > driver.known:
        for what, then in _sent(world, ("put", seq, entry), rules):
            yield f"appends {entry.kind}, {what}", _with(then, number, driver)
        world = applied(world, ("put", seq, entry), rules)
        if lies_at(world, seq) == entry and rules.knows_own_attempt:
            step = driver._replace(step="confirm")
            yield f"appends {entry.kind}", _with(world, number, step)
            return
        driver = _learned(world, driver, seq)
    if _fenced(world, driver, rules):
        yield "is fenced", _with(world, number, driver._replace(step="end", doubt=None, fence=0))
    elif known_of(world, driver)[seq - 1] == entry and rules.knows_own_attempt:
        done = _appended(world, driver, entry, rules)
        yield f"appended {entry.kind}", _with(world, number, done)
    else:
        doubt = (driver.known + 1, entry)
        yield "appends further on", _with(world, number, driver._replace(doubt=doubt))


def _entry(driver: Driver, known: tuple[Entry, ...], attempt: tuple[int, int]) -> Entry:
    match driver.step:
        case "complete":
            return Entry("checkpoint", driver.fence, driver.checkpoint, attempt, driver.width)
        case "retire":
            return Entry("retire", driver.fence, driver.victims[0], attempt)
        case "rescale":
            return Entry("rescaled", driver.fence, _newest(known), attempt, driver.to_width)
        case _:
            return Entry("compacted", driver.fence, 0, attempt)


def _refreshed(world: World, driver: Driver) -> Driver:
    """After `LogWriter.refresh`."""
    driver = _read_on(world, driver)
    if driver.begins in dict(world.moved):
        driver = driver._replace(begins=base_of(world), known=len(world.log), misread=())
    return driver


def _fenced(world: World, driver: Driver, rules: Rules) -> bool:
    return rules.refuses_lower_fence and _highest(known_of(world, driver)) > driver.fence


def _appended(world: World, driver: Driver, entry: Entry, rules: Rules) -> Driver:
    driver = driver._replace(doubt=None)
    if entry.kind == "rescaled":
        return driver._replace(step="begin", width=entry.width)
    if entry.kind == "compacted":
        step = "move" if rules.marks_before_it_clears else "clear"
        return driver._replace(step=step, compacted=driver.known)
    if entry.kind == "checkpoint":
        older = [e.checkpoint for e in live(known_of(world, driver))][:-1]
        driver = driver._replace(to_complete=driver.to_complete - 1, victims=tuple(older))
        following = "retire" if rules.retires_before_deleting else "look"
        return driver._replace(step=following if older else "begin")
    if len(driver.victims) > 1:
        return driver._replace(victims=driver.victims[1:], step="retire")
    return driver._replace(step="look", victims=())


def _look(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    """Read what others appended, just before the deletion."""
    driver = _refreshed(world, driver)
    if _fenced(world, driver, rules):
        yield "is fenced", _with(world, number, driver._replace(step="end", fence=0))
    else:
        yield "looks", _with(world, number, driver._replace(step="delete"))


def _delete(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[tuple[str, World]]:
    known = known_of(world, driver)
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


_STEPS = {
    "read": _read,
    "read on": _read,
    "claim": _claim,
    "confirm": _confirm,
    "begin": _begin,
    "manifest": _put_manifest,
    "complete": _append,
    "retire": _append,
    "compact": _append,
    "rescale": _append,
    "move": _move,
    "clear": _clear,
    "look": _look,
    "delete": _delete,
}
