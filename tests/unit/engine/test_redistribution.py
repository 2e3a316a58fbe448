"""Operator state dealt out anew on real state servers: through crashes, checkpoints and formats."""

import os
import signal
from contextlib import closing
from itertools import chain

import pytest

from moorage.driver.local import LocalServers
from moorage.engine.fleet import RangeFleet, SavedOperator
from moorage.engine.operator_states import OperatorMove, redistribute
from moorage.engine.range_access import BoundRange, connect_to
from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.errors import Retryable
from moorage_state.keyed import KeyedStateStore
from moorage_state.keygroups import range_of
from moorage_state.operator_state import RangeOperatorStates
from moorage_state.rocks import RocksOptions
from moorage_state.server import ServerGroup
from moorage_state.snapshots import OperatorStateMeta
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

GROUPS = 12
MIB = 1 << 20
SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=MIB
    )
)
SEEN = ListStateDescriptor("seen", "string")
OFFSETS = ListStateDescriptor("offsets", "long")
RULES = MapStateDescriptor("rules", "string", "long")


class Life:
    """The ranges of one run, with two operators of which one has operator state."""

    def __init__(self, group, store, parallelism, run):
        self.group, self.run, self.parallelism = group, run, parallelism
        uids = ["watch", "plain"]
        self.fleet = RangeFleet(LocalServers(group), uids, parallelism, GROUPS, store)
        self.epoch, self.schemas = 0, []

    def open(self, base=None, schemas=()):
        """Open at a checkpoint: its id, epoch and handles, and how many subtasks it had."""
        self.schemas = list(schemas)
        checkpoint_id, self.epoch, handles, _ = base or (0, 0, {}, 0)
        self.fleet.open(self.run, self.epoch, handles, checkpoint_id)

    def deal_out(self, before):
        starts = [range_of(i, before, GROUPS).start for i in range(before)]
        moves = {"watch": OperatorMove(self.schemas, starts), "plain": OperatorMove([], starts)}
        self.epoch = redistribute(
            self.fleet,
            self.group.token,
            ["watch", "plain"],
            self.parallelism,
            GROUPS,
            moves=moves,
            epoch=self.epoch,
        )

    def epoch_of(self, work):
        """Run and commit an epoch of the operator; what `work(states, subtask)` gave."""
        digests, given = {}, []
        for uid in ("watch", "plain"):
            for subtask, leased in enumerate(self.fleet.leased(uid)):
                with closing(connect_to(leased.door, self.group.token)) as client:
                    bound = BoundRange(client, leased, self.epoch + 1, "a")
                    if uid == "watch":
                        given.append(self.work(work, bound, leased, subtask))
                    digests[uid, subtask] = bound.prepare()
        self.fleet.commit(self.epoch + 1, digests)
        self.epoch += 1
        return given

    def work(self, work, bound, leased, subtask):
        store = KeyedStateStore(bound, self.epoch + 1)
        states = RangeOperatorStates(bound, store, leased.lease.start, self.epoch + 1, self.schemas)
        found = work(states, subtask)
        states.flush()
        store.finish()
        self.schemas = states.schemas
        return found

    def checkpoint(self, checkpoint_id):
        self.fleet.snapshot(checkpoint_id)
        handles = self.fleet.upload(checkpoint_id, {}).handles
        return checkpoint_id, self.epoch, handles, self.parallelism

    def savepoint(self, checkpoint_id, url):
        self.fleet.snapshot(checkpoint_id)
        metas = [
            OperatorStateMeta(name=s.name, mode=s.mode, type=s.type, key_type=s.key_type or None)
            for s in self.schemas
        ]
        operators = {
            "watch": SavedOperator(["string"], [], operator_states=metas),
            "plain": SavedOperator(["string"], []),
        }
        told: list[tuple[int, int]] = []
        saved = self.fleet.save(
            checkpoint_id,
            self.epoch,
            url,
            operators,
            canonical=True,
            told=lambda *counts: told.append(counts),
        )
        assert (told[0][0], told[-1][0]) == (0, told[-1][1]), told
        return checkpoint_id, self.epoch, saved.handles, self.parallelism


def fill(states, subtask):
    states.get_list_state(SEEN).add_all([f"{subtask}{letter}" for letter in "abcd"])
    states.get_union_list_state(OFFSETS).add(subtask)
    states.get_broadcast_state(RULES).put("factor", 5)


def look(states, _subtask):
    seen = states.get_list_state(SEEN).get()
    own = states.get_union_list_state(OFFSETS).get()
    return seen, own, states.get_broadcast_state(RULES).items()


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with ServerGroup(2, tmp_path_factory.mktemp("moving"), backend=SMALL) as servers:
        yield servers


@pytest.fixture
def new_life(group, tmp_path):
    made = []
    (tmp_path / "store").mkdir()

    def make(parallelism):
        run = f"f{next(_FENCES)}r0"
        made.append(Life(group, f"file://{tmp_path / 'store'}", parallelism, run))
        return made[-1]

    yield make
    for life in made:
        life.fleet.close()


_FENCES = iter(range(1, 1000))


@pytest.fixture
def base(new_life):
    """A checkpoint of two subtasks, and the schemas that it has."""
    life = new_life(2)
    life.open()
    life.epoch_of(fill)
    return life.checkpoint(1), life.schemas


IN_THREE = [["0a", "0b", "0c"], ["0d", "1a", "1b"], ["1c", "1d"]]
RULE = [("factor", 5)]


def test_lists_are_split_and_maps_copied_before_the_first_epoch(new_life, base):
    point, schemas = base
    life = new_life(3)
    life.open(point, schemas)
    life.deal_out(2)
    assert life.epoch == point[1] + 1
    found = life.epoch_of(look)
    assert [seen for seen, _, _ in found] == IN_THREE
    assert sorted(n for _, own, _ in found for n in own) == [0, 1]
    assert [rules for _, _, rules in found] == [RULE] * 3


def test_with_the_same_ranges_there_is_nothing_to_do(new_life, base):
    point, schemas = base
    life = new_life(2)
    life.open(point, schemas)
    life.deal_out(2)
    assert life.epoch == point[1]
    assert [seen for seen, _, _ in life.epoch_of(look)] == [
        ["0a", "0b", "0c", "0d"],
        ["1a", "1b", "1c", "1d"],
    ]


@pytest.mark.parametrize("step", ["stage", "prepare", "commit"])
def test_a_run_that_dies_while_it_deals_out_is_followed_by_one_that_does_it_again(
    new_life, base, monkeypatch, step
):
    point, schemas = base
    first = new_life(3)
    first.open(point, schemas)

    def dies(*_):
        raise Retryable("the driver is gone")

    with monkeypatch.context() as patch:
        if step == "commit":
            patch.setattr(first.fleet, "commit", dies)
        else:
            patch.setattr(BoundRange, step, dies)
        with pytest.raises(Retryable):
            first.deal_out(2)
    second = new_life(3)
    second.open(point, schemas)
    second.deal_out(2)
    assert [seen for seen, _, _ in second.epoch_of(look)] == IN_THREE


def test_servers_that_die_after_it_come_back_with_it(new_life, base, group):
    point, schemas = base
    life = new_life(3)
    life.open(point, schemas)
    life.deal_out(2)
    for pid in group.pids:
        os.kill(pid, signal.SIGKILL)
    life.fleet.recover()
    assert [seen for seen, _, _ in life.epoch_of(look)] == IN_THREE


def test_it_goes_on_through_checkpoints_and_canonical_savepoints(new_life, base, tmp_path):
    point, schemas = base
    three = new_life(3)
    three.open(point, schemas)
    three.deal_out(2)
    (tmp_path / "savepoint").mkdir()
    saved = three.savepoint(2, f"file://{tmp_path / 'savepoint'}")
    native = three.checkpoint(3)
    for parallelism, found_in in ((1, native), (1, saved), (3, saved), (5, saved)):
        life = new_life(parallelism)
        if found_in is saved:
            url = f"file://{tmp_path / 'savepoint'}"
            life.schemas, life.epoch = list(schemas), saved[1]
            life.fleet.open(life.run, saved[1], saved[2], saved[0], url)
        else:
            life.open(found_in, schemas)
        life.deal_out(3)
        found = life.epoch_of(look)
        lists = [seen for seen, _, _ in found]
        assert [element for seen in lists for element in seen] == list(chain(*IN_THREE))
        if parallelism != 3:
            assert max(map(len, lists)) - min(map(len, lists)) <= 1
        assert sorted(n for _, own, _ in found for n in own) == [0, 1]
        assert [rules for _, _, rules in found] == [RULE] * parallelism
