"""Earlier types of a state in manifests: kept where values may have them, and nowhere else."""

import pytest
from moorage_testing.manifests import checkpoint_manifest

from moorage.driver.manifests import known_schemas
from moorage_state.keyed.schema import StateSchema
from moorage_state.snapshots import OperatorState, RangeHandle, encode_manifest, metas_of
from moorage_state.snapshots.manifest import decode_manifest

SCHEMA = StateSchema(
    "visit",
    "value",
    "struct<n:double,by:string DEFAULT 'it''s'>",
    "",
    ("struct<n:int>",),
    ttl_ms=5,
    indexed_ms=7,
    cleanup_in_full_snapshot=True,
)


def manifest(kind):
    handle = RangeHandle(
        uid="op",
        start=0,
        end=7,
        epoch=3,
        digest="d",
        backend_uuid="b",
        files=[],
        bytes_total=0,
        format=kind,
    )
    operator = OperatorState(
        parallelism=1, key_types=["string"], states=metas_of((SCHEMA,)), subtasks=[handle]
    )
    return checkpoint_manifest("lineage", 1, epoch=3, max_parallelism=8, operators={"op": operator})


def test_a_manifest_keeps_the_types_that_values_may_still_have():
    made = manifest("native")
    assert decode_manifest(encode_manifest(made), "m") == made
    assert known_schemas(made) == {"op": (SCHEMA,)}


@pytest.mark.parametrize(("kind", "earlier"), [("native", SCHEMA.earlier), ("canonical", ())])
def test_a_restore_from_canonical_files_begins_without_earlier_types(kind, earlier):
    (schema,) = known_schemas(manifest(kind))["op"]
    assert schema.earlier == earlier
    assert schema.type == SCHEMA.type
