"""docs/flink-map.md: whoever comes from Flink finds every name again, and only what is so."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "flink-map.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", PAGE, re.MULTILINE)
DIFFERENT = re.findall(r"^\| .+? \| .+? \| .+? \| `(.+?)` \|$", PAGE, re.MULTILINE)

# What Flink's documentation of state, backends and checkpoints names for people who write jobs.
NAMES = [
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
    "AbstractManagedMemoryStateBackend",
    "BatchExecutionStateBackend",
    "CheckpointStreamFactory",
    "CheckpointStorageLocation",
    "OperatorStateBackend",
    "CheckpointableKeyedStateBackend",
    "state.backend",
    "state.backend.rocksdb.localdir",
    "timer-service.factory",
    "KeyedStateStore.getState",
    "KeyedStateStore.getListState",
    "KeyedStateStore.getReducingState",
    "KeyedStateStore.getAggregatingState",
    "KeyedStateStore.getFoldingState",
    "KeyedStateStore.getMapState",
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
    "initializeSerializerUnlessSet",
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
]


def _resolved(path: str) -> object:
    module, *rest = path.split(".")
    found: object = import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        found = getattr(found, part) if hasattr(found, part) else import_module(module)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_documentation_has_its_line(name):
    theirs = {part for row in ROWS for part in re.split(r"[,:`\s]+", row[0])}
    assert name in theirs


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
