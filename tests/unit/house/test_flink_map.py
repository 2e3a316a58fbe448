"""docs/flink-map.md: whoever comes from Flink finds every name again, and only what is so."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "flink-map.md").read_text()
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
DIFFERENT = re.findall(r"^\| .+? \| .+? \| .+? \| `(.+?)` \|$", PAGE, re.MULTILINE)

# What Flink's documentation names for people who write and test jobs, by the table that has it.
NAMES = [
    # State backends
    "StateBackend",
    "createKeyedStateBackend",
    "createOperatorStateBackend",
    "resolveCheckpoint",
    "ConfigurableStateBackend",
    "DelegatingStateBackend",
    "StateBackendFactory",
    "createFromConfig",
    "getIdentifier",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "FsStateBackend",
    "EmbeddedRocksDBStateBackend",
    "ForStStateBackend",
    "AbstractManagedMemoryStateBackend",
    "BatchExecutionStateBackend",
    "CheckpointStreamFactory",
    "CheckpointStorage",
    "CheckpointStorageLocation",
    "OperatorStateBackend",
    "CheckpointableKeyedStateBackend",
    "state.backend",
    "state.backend.rocksdb.localdir",
    "timer-service.factory",
    # Keyed state
    "KeyedStateStore.getState",
    "KeyedStateStore.getListState",
    "KeyedStateStore.getReducingState",
    "KeyedStateStore.getAggregatingState",
    "KeyedStateStore.getFoldingState",
    "KeyedStateStore.getMapState",
    "RichFunction.open",
    "KeyedProcessFunction.processElement",
    "process_element",
    "ValueState",
    "ListState",
    "MapState",
    "ReducingState",
    "AggregatingState",
    "FoldingState",
    "ValueStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReducingStateDescriptor",
    "AggregatingStateDescriptor",
    "FoldingStateDescriptor",
    "StateDescriptor.setQueryable",
    "QueryableStateClient.getKvState",
    "KeyGroupRangeAssignment",
    "TypeSerializerSchemaCompatibility",
    "StateTtlConfig",
    "TimerService",
    # Operator state, raw state
    "OperatorStateStore",
    "getListState",
    "getUnionListState",
    "getBroadcastState",
    "getRegisteredStateNames",
    "getRegisteredBroadcastStateNames",
    "CheckpointedFunction",
    "initializeState",
    "snapshotState",
    "FunctionInitializationContext",
    "getManagedInitializationContext",
    "FunctionSnapshotContext",
    "StateSnapshotContext",
    "StatePartitionStreamProvider.getStream",
    "BroadcastProcessFunction",
    "initializeSerializerUnlessSet",
    # Side outputs
    "OutputTag",
    "getSideOutput",
    "Context.output",
    "sideOutputLateData",
    # Event time
    "WatermarkStrategy.forBoundedOutOfOrderness",
    "withTimestampAssigner",
    "WatermarkStrategy.withIdleness",
    "currentWatermark",
    "onTimer",
    # Windows, and what is ready-made
    "KeyedStream.window",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "SlidingEventTimeWindows",
    "EventTimeSessionWindows",
    "ProcessingTimeSessionWindows",
    "GlobalWindows",
    "countWindow",
    "allowedLateness",
    "EventTimeTrigger",
    "ProcessingTimeTrigger",
    "CountTrigger",
    "PurgingTrigger",
    "ContinuousProcessingTimeTrigger",
    "NeverTrigger",
    "numLateRecordsDropped",
    "WindowedStream.aggregate",
    "WindowedStream.reduce",
    "ReduceFunction",
    "ProcessWindowFunction",
    "KeyedStream.sum",
    "Deduplication",
    "Top-N",
    # Two streams
    "KeyedStream.connect",
    "ConnectedStreams.process",
    "KeyedCoProcessFunction",
    "KeyedStream.intervalJoin",
    "between",
    "ProcessJoinFunction",
    "sideOutputLeftLateData",
    "sideOutputRightLateData",
    "DataStream.join",
    "JoinedStreams",
    "JoinFunction",
    "DataStream.coGroup",
    "CoGroupedStreams",
    "CoGroupFunction",
    "TemporalRowTimeJoinOperator",
    "TemporalProcessTimeJoinOperator",
    # Checkpoints
    "CheckpointCoordinator",
    "startCheckpointScheduler",
    "stopCheckpointScheduler",
    "triggerCheckpoint",
    "receiveAcknowledgeMessage",
    "receiveDeclineMessage",
    "restoreLatestCheckpointedState",
    "CheckpointIDCounter",
    "CompletedCheckpointStore",
    "CheckpointFailureManager",
    "CheckpointConfig",
    "CheckpointProperties",
    "CheckpointMetaData",
    "CheckpointOptions",
    "CheckpointType.isSavepoint",
    "CheckpointException",
    "CheckpointFailureReason",
    "ExternalizedCheckpointCleanup",
    # Tests
    "KeyedOneInputStreamOperatorTestHarness",
    "KeyedTwoInputStreamOperatorTestHarness",
    "KeyedBroadcastOperatorTestHarness",
    "ProcessFunctionTestHarnesses",
    "processElement1",
    "processElement2",
    "processBroadcastElement",
    "processWatermark",
    "setProcessingTime",
    "snapshot",
    "repartitionOperatorState",
    "MiniClusterWithClientResource",
]


def _names(text: str) -> set[str]:
    """The names of Flink's that the rows of a text have."""
    return {part for row in ROW.findall(text) for part in re.split(r"[,:`\s]+", row[0])}


def _resolved(path: str) -> object:
    module, *rest = path.split(".")
    found: object = import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        found = getattr(found, part) if hasattr(found, part) else import_module(module)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_documentation_has_its_line(name):
    assert name in _names(PAGE)


def test_every_table_of_the_page_has_names_that_are_asked_for():
    tables = PAGE.partition("## What is different")[0].split("\n## ")[1:]
    for table in tables:
        title, _, rows = table.partition("\n")
        assert _names(rows).intersection(NAMES), title


@pytest.mark.parametrize("ours", sorted({row[1] for row in ROWS}))
def test_what_a_line_names_is_there(ours):
    assert _resolved(ours) is not None


@pytest.mark.parametrize("test", sorted({row[2] for row in ROWS} | {*DIFFERENT}))
def test_the_test_that_a_line_names_is_there(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_what_is_different_has_its_own_rows():
    lines = PAGE.partition("## What is different")[2].splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| ---")]
    assert len(DIFFERENT) == len(rows) - 1 >= 8
    assert "DeactivatedChangelogStateBackend" in "".join(rows)
