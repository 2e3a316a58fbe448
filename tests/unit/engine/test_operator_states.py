"""What the driver knows of operator state between epochs, and which graphs it accepts."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from moorage import (
    CheckpointedFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ListStateDescriptor,
    MapStateDescriptor,
)
from moorage.api.graph import JobGraph, OperatorNode
from moorage.driver.manifests import operator_metas, operator_sides
from moorage.engine.acks import Ack, EpochOutcome
from moorage.engine.operator_states import OperatorStates
from moorage_state.errors import UserError
from moorage_state.operator_state import OperatorStateSchema

RULES = MapStateDescriptor("rules", "string", "long")
ROWS = StructType().add("user", StringType()).add("n", LongType())
SEEN = OperatorStateSchema("seen", "split", "bigint")


class Plain(KeyedProcessFunction):
    def process(self, row, ctx):
        """Gives nothing."""


class Counts(Plain, CheckpointedFunction):
    def initialize_state(self, ctx):
        """Takes nothing up."""

    def snapshot_state(self, ctx):
        """Leaves nothing."""


class Prices(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        """Gives nothing."""

    def process_broadcast_element(self, row, ctx):
        """Keeps nothing."""


class Environment:
    def __init__(self):
        self.graph = JobGraph()

    def claim_uid(self, uid):
        pass


@pytest.fixture(autouse=True)
def _reads_ddl_without_a_jvm(monkeypatch):
    monkeypatch.setattr("moorage.api.streams.parse_output", lambda _uid, _ddl: ROWS)


@pytest.fixture
def stream():
    env: Any = Environment()
    return DataStream(env, schema=ROWS)


@pytest.fixture
def keyed(stream):
    return KeyedStream(stream, ("user",), ("string",))


def graph_of(keyed, stream):
    keyed.process(Plain(), uid="plain", output="n long")
    keyed.process(Counts(), uid="counts", output="n long")
    keyed.connect(stream, RULES).process(Prices(), uid="prices", output="n long", null_key="drop")
    return keyed.stream.env.graph


def outcome(*acks):
    return EpochOutcome({(ack.uid, ack.subtask): ack for ack in acks})


def ack(uid, subtask, *schemas):
    return Ack(uid=uid, subtask=subtask, run="f1r0", epoch=1, operator_states=list(schemas))


def test_only_operators_with_such_state_have_a_plan(keyed, stream):
    graph = graph_of(keyed, stream)
    plans = OperatorStates().plans(graph)
    assert set(plans) == {"counts", "prices"}
    assert (plans["counts"].columns, plans["counts"].descriptors) == ((), ())
    assert (plans["prices"].columns, plans["prices"].descriptors) == (("user", "n"), (RULES,))
    assert graph.operators[2].null_key == "drop"


def test_an_operator_is_restored_from_its_second_epoch_on(keyed, stream):
    graph, ids = graph_of(keyed, stream), iter([5, 6])
    states = OperatorStates(next_checkpoint_id=lambda: next(ids))
    first = states.plans(graph)["counts"]
    assert (first.restored, first.restored_checkpoint_id, first.checkpoint_id) == (False, None, 5)
    done = outcome(ack("counts", 0, SEEN), ack("prices", 0))
    states.committed(done.operator_states(), ["plain", "counts"])
    second = states.plans(graph)
    assert (second["counts"].restored, second["counts"].checkpoint_id) == (True, 6)
    assert second["counts"].schemas == (SEEN,)
    assert not second["prices"].restored


def test_union_lists_have_another_version_after_each_epoch_that_wrote_to_one(keyed, stream):
    graph, states = graph_of(keyed, stream), OperatorStates()

    def version():
        return states.plans(graph)["counts"].union_version

    def committed(*, wrote):
        done = outcome(Ack(uid="counts", subtask=0, run="r", epoch=1, wrote_union=wrote))
        states.committed({}, ["counts"], done.union_writers())

    first = version()
    committed(wrote=False)
    assert version() == first
    committed(wrote=True)
    second = version()
    committed(wrote=True)
    assert (
        len({first, second, version(), OperatorStates().plans(graph)["counts"].union_version}) == 4
    )


def test_without_such_operators_no_checkpoint_id_is_asked_for(keyed):
    keyed.process(Plain(), uid="plain", output="n long")
    states = OperatorStates(next_checkpoint_id=lambda: pytest.fail("asked"))
    assert states.plans(keyed.stream.env.graph) == {}


def test_two_subtasks_must_declare_a_name_alike():
    other = OperatorStateSchema("seen", "union", "bigint")
    with pytest.raises(UserError, match="'seen' of another subtask was registered as list state"):
        outcome(ack("a", 0, SEEN), ack("a", 1, other)).operator_states()


WIDER = OperatorStateSchema("seen", "split", "double")


@pytest.mark.parametrize(
    ("reported", "told"),
    [
        ([SEEN, WIDER, SEEN], (WIDER,)),
        ([WIDER, WIDER, WIDER], ()),
        ([SEEN, SEEN, SEEN], ()),
        ([WIDER, OperatorStateSchema("seen", "union", "double"), SEEN], ()),
    ],
)
def test_subtasks_that_left_a_state_as_it_was_are_told_how_others_declare_it(
    keyed, stream, reported, told
):
    graph = graph_of(keyed, stream)
    states = OperatorStates({"counts": (SEEN,)})
    done = outcome(*(ack("counts", n, schema) for n, schema in enumerate(reported)))
    assert states.changes(done) == bool(told)
    assert states.plans(graph)["counts"].changed == told
    assert not states.changes(done), "they were told, and nothing else can come of it"
    states.committed({}, ["counts"])
    assert states.plans(graph)["counts"].changed == ()


def test_a_new_state_that_one_subtask_declares_is_no_change_for_the_others():
    assert not OperatorStates().changes(outcome(ack("counts", 0, SEEN), ack("counts", 1)))


def test_manifests_say_what_a_run_has_to_know():
    rules = OperatorStateSchema("rules", "broadcast", "bigint", "string")
    metas = operator_metas([SEEN, rules])
    assert [meta.label for meta in metas] == ["_operator.seen", "_operator.rules"]
    operators = {
        "counts": SimpleNamespace(operator_states=metas),
        "plain": SimpleNamespace(operator_states=[]),
    }
    manifest: Any = SimpleNamespace(operators=operators, checkpoint_id=9)
    states = operator_sides(manifest)
    assert states.schemas == {"counts": (SEEN, rules)}
    assert states.restored == {"counts", "plain"}
    assert states.restored_checkpoint_id == 9
    assert operator_sides(None).restored_checkpoint_id is None


@pytest.mark.parametrize(
    ("descriptors", "message"),
    [
        ((), "needs the MapStateDescriptor .*got=none"),
        ((ListStateDescriptor("l", "long"),), "needs the MapStateDescriptor .*got=.*ListState"),
        ((RULES, MapStateDescriptor("rules", "string", "int")), "two broadcast states"),
    ],
)
def test_connect_needs_descriptors_of_maps(keyed, stream, descriptors, message):
    with pytest.raises(UserError, match=message):
        keyed.connect(stream, *descriptors)


def test_a_broadcast_stream_takes_the_descriptors_of_both_calls(keyed, stream):
    other = MapStateDescriptor("other", "string", "int")
    keyed.connect(stream.broadcast(RULES), other).process(Prices(), uid="p", output="n long")
    node = keyed.stream.env.graph.operators[0]
    assert node.broadcast.descriptors == (RULES, other)


def test_the_output_of_an_operator_cannot_be_broadcast(keyed):
    output = keyed.process(Plain(), uid="plain", output="n long")
    with pytest.raises(UserError, match=r"a broadcast stream comes from inputs.*operator=plain"):
        keyed.connect(output, RULES)


def test_columns_that_pyspark_cannot_pass_on_are_refused(keyed):
    env: Any = Environment()
    strange = DataStream(env, schema=StructType().add("a.b", LongType()))
    with pytest.raises(UserError, match=r"columns=\['a\.b'\]"):
        keyed.connect(strange, RULES)


def test_functions_and_streams_must_fit(keyed, stream):
    with pytest.raises(UserError, match=r"instance of a KeyedBroadcastProcessFunction.*got=Plain"):
        keyed.connect(stream, RULES).process(Plain(), uid="a", output="n long")
    with pytest.raises(UserError, match="needs a broadcast stream: uid=a; call connect"):
        keyed.process(Prices(), uid="a", output="n long")


def test_a_node_without_a_broadcast_stream_has_no_such_inputs(stream):
    node = OperatorNode("a", stream, ("user",), ("string",), Plain(), ROWS, "fail")
    assert node.broadcast_branches == ()
