"""The journeys that the map describes are those that the code makes, file by file."""

import re

import pytest
from moorage_testing.journeys import PRODUCT, ROOT, DriverWorld, Subtasks, Trace
from moorage_testing.world import World

from moorage import KeyedProcessFunction, ValueStateDescriptor
from moorage.driver import stream_run
from moorage.driver.housekeeping import Housekeeper
from moorage.engine import subtask
from moorage.engine.epoch import EpochRunner

PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILES = [
    str(path.relative_to(ROOT)) for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")
]


def named(text):
    """The files that a part of the page names, in order; a folder stands for all that is in it."""
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        inside = [file for file in FILES if f"/{name}" in f"/{file}"]
        ends = [file for file in inside if f"/{file}".endswith(f"/{name}")]
        found = inside if name.endswith("/") else ends
        assert found, f"the page names what is not there: {name}"
        assert name.endswith("/") or len(found) == 1, f"which one does the page mean? {found}"
        yield name, set(found)


def section(title):
    head = f"### The journey of {title}\n"
    assert head in PAGE
    return PAGE.partition(head)[2].partition("\n#")[0].partition("\n1. ")[2]


def everywhere():
    """What every journey passes, and none lists."""
    (line,) = re.findall(r"^Not listed, .*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    return set().union(*(files for _, files in named(line)))


def check(title, passed, most):
    """The page lists these files, and no others, in this order; there are no more than `most`."""
    steps = list(named(section(title)))
    listed = set().union(*(files for _, files in steps))
    known = everywhere()
    assert not listed & known, "a file is in a journey, or it is in all of them"
    lacking = [file for file in passed if file not in listed | known]
    assert not lacking, f"the run passes these, and {title}'s journey lacks them: {lacking}"
    idle = [name for name, files in steps if not files & passed.keys()]
    assert not idle, f"{title}'s journey lists these, and the run does not pass them: {idle}"
    firsts = [min(list(passed).index(f) for f in files & passed.keys()) for _, files in steps]
    late = [steps[i][0] for i in range(1, len(steps)) if firsts[i] < firsts[i - 1]]
    assert not late, f"{title}'s journey has these too late: {late}; entered: {list(passed)}"
    assert len(listed & passed.keys()) <= most, "a journey gets shorter, not longer"


@pytest.fixture
def trace():
    with Trace().installed() as one:
        yield one


def test_of_a_record(tmp_path, trace, monkeypatch):
    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process(self, row, ctx):
            if row.key == "b":
                trace.begin()
            if row.key == "d":
                trace.end()
            self.n.update((self.n.value() or 0) + 1)
            yield ctx.key, self.n.value()

    subtasks = Subtasks(tmp_path)
    monkeypatch.setattr(subtask, "connect_to", subtasks.connect)
    subtasks.run(Count(), "abcd")
    check("a record", trace.modules, most=5)


@pytest.fixture
def _ends_before_chores(monkeypatch, trace):
    """What lets old checkpoints go works beside the next epochs, whenever it comes to that."""
    monkeypatch.setattr(Housekeeper, "after", lambda *_: trace.end())


@pytest.mark.usefixtures("_ends_before_chores")
def test_of_a_checkpoint(tmp_path, trace):
    world = DriverWorld(tmp_path)
    world.found()
    run = world.begin()
    world.commit(1)
    with trace.on():
        world.checkpoint(run, 1)
    check("a checkpoint", trace.modules, most=24)


@pytest.mark.usefixtures("_ends_before_chores")
def test_of_a_restore(tmp_path, trace, monkeypatch):
    def runner(*args, **kwargs):
        trace.end()  # epochs can begin
        return EpochRunner(*args, **kwargs)

    world = DriverWorld(tmp_path)
    world.found()
    run = world.begin()
    world.commit(1)
    world.checkpoint(run, 1)
    world.found()
    monkeypatch.setattr(stream_run, "EpochRunner", runner)
    with trace.on():
        world.begin()
    check("a restore", trace.modules, most=25)


async def test_of_a_reconcile(trace):
    world = World()
    world.apply()
    with trace.on():
        await world.until(world.is_running)
    world.buckets.forget()
    operator = "operator/moorage_operator/"
    passed = {file: None for file in trace.modules if file.startswith(operator)}
    check("a reconcile", passed, most=40)


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 120


def test_every_path_of_the_page_is_there():
    assert list(named(re.sub(r"NAME/|`tests/[^`]*`", "", PAGE)))
