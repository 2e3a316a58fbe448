"""From one minor version of Spark to another, state goes by what every version reads."""

import pyspark
import pytest
from moorage_testing.manifests import checkpoint_manifest

from moorage.driver.refusals import RestorePointIncompatible
from moorage.driver.restore_point import check_spark
from moorage.engine.event_time import Watermarks
from moorage_state.snapshots import OperatorState, RangeHandle


def point(wrote, file_format="native"):
    handle = RangeHandle(
        uid="counter",
        start=0,
        end=127,
        epoch=7,
        digest="d",
        backend_uuid="b",
        files=[],
        bytes_total=0,
        format=file_format,
    )
    state = OperatorState(
        parallelism=1, key_types=["string"], states=[], subtasks=[handle], operator_states=[]
    )
    extra = {"spark_version": wrote} if wrote else {}
    return checkpoint_manifest("lineage-1", 7, operators={"counter": state}, extra=extra)


@pytest.mark.scenario(58)
@pytest.mark.parametrize(("wrote", "this"), [("4.1.4", "4.2.0"), ("4.2.0", "4.1.4")])
def test_native_files_of_another_spark_are_refused_with_both_versions_and_the_way_out(wrote, this):
    with pytest.raises(RestorePointIncompatible) as refused:
        check_spark(point(wrote), this)
    told = str(refused.value)
    assert f"checkpoint=7 written_by={wrote} this={this}" in told
    assert "take a canonical savepoint with the version that wrote it" in told


@pytest.mark.scenario(58)
def test_a_canonical_savepoint_goes_from_one_spark_to_another():
    check_spark(point("4.1.4", "canonical"), "4.2.0")


@pytest.mark.parametrize("wrote", ["4.2.1", ""])
def test_a_patch_of_the_same_spark_and_a_point_that_names_none_are_taken(wrote):
    check_spark(point(wrote), "4.2.0")


def test_every_manifest_names_the_spark_that_wrote_it(made_at):
    made = made_at(Watermarks({}, {}))
    assert made.extra["spark_version"] == pyspark.__version__
