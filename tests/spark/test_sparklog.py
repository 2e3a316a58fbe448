import itertools
import json
from dataclasses import dataclass, field

import pytest
from moorage_testing.manifests import checkpoint_fields
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  the name everybody reads

from moorage.engine.sparklog import COMPACT_INTERVAL, SparkLog, capture, compact_interval, lay
from moorage_state.errors import UserError
from moorage_state.snapshots import Cutter, Root, source_texts, store_texts, with_texts
from moorage_state.stores import MemoryStore

pytestmark = pytest.mark.spark

FILES = 13  # the file source compacts its log at its tenth batch


@dataclass
class Run:
    """What a query did: rows (uid, id) of each batch, a capture of each, its id."""

    batches: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    captures: dict[int, SparkLog] = field(default_factory=dict)
    roots: dict[int, Root] = field(default_factory=dict)
    store: MemoryStore = field(default_factory=lambda: MemoryStore("sparklog"))
    cutter: Cutter = field(default_factory=Cutter)
    query_id: str = ""

    def rows(self, upto=10**9):
        kept = (rows for batch, rows in self.batches.items() if batch <= upto)
        return sorted(itertools.chain.from_iterable(kept))

    def checkpoint(self, location, batch, uids):
        """As a run takes one: what is large goes into objects, where it is not there yet."""
        plain = capture(location, batch, uids, self.cutter).to_json()
        base = self.roots.get(batch - 1)
        texts = store_texts(self.store, self.cutter.taken(), base, f"u{batch}").texts
        fields = checkpoint_fields("lineage", batch + 1)
        fields |= {"source": plain, "source_texts": texts, "base_id": batch}
        self.roots[batch] = Root(**fields)


def run(inputs, location, *, crash_at=None):
    """Run all that is there, or up to the batch that crashes before Spark calls it committed."""
    done = Run()

    def process(df, batch):
        done.batches[batch] = [(row.uid, row.id) for row in df.collect()]
        done.captures[batch] = capture(location, batch, list(inputs))
        done.checkpoint(location, batch, list(inputs))
        if batch == crash_at:
            raise RuntimeError("crash on purpose")

    frames = [df.select(F.lit(uid).alias("uid"), "id") for uid, df in inputs.items()]
    union = frames[0]
    for frame in frames[1:]:
        union = union.union(frame)
    writer = union.writeStream.foreachBatch(process).option("checkpointLocation", str(location))
    if crash_at is None:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    done.query_id = str(query.id)
    try:
        query.awaitTermination()
    except StreamingQueryException:
        assert crash_at in done.captures
    finally:
        query.stop()
    return done


def json_files(spark, folder, *, per_batch=1):
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", per_batch)
    return reader.json(str(folder))


def parquet_files(spark, folder, *, per_batch=1):
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", per_batch)
    return reader.parquet(str(folder))


def rate(spark):
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
    return reader.option("numPartitions", 1).load().select(F.col("value").alias("id"))


def add_json(folder, *ids):
    folder.mkdir(exist_ok=True)
    for i in ids:
        (folder / f"{i}.json").write_text(json.dumps({"id": i}))


@pytest.fixture(scope="module")
def data(spark, tmp_path_factory):
    """Folder `j` of 13 JSON files and folder `p` of 3 Parquet files, a row in each."""
    base = tmp_path_factory.mktemp("data")
    add_json(base / "j", *range(FILES))
    spark.range(100, 103, 1, 3).write.parquet(str(base / "p"))
    return base


ALL = sorted([("j", i) for i in range(FILES)] + [("p", i) for i in range(100, 103)])


@pytest.fixture(scope="module")
def recorded(spark, data):
    """One query over all the files, one of each folder at a time, captured in every batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_texts, "CHUNK_SIZES", (1024, 256, 64))
        return record(spark, data)


def record(spark, data):
    inputs = {"j": json_files(spark, data / "j"), "p": parquet_files(spark, data / "p")}
    done = run(inputs, data / "recorded")
    assert sorted(done.batches) == list(range(FILES))
    assert done.rows() == ALL
    return done


@pytest.mark.parametrize("batch", [0, 1, 8, 9, 10, 12])
def test_rewound_to_any_batch_the_rest_comes_once_and_nothing_else(
    spark, data, recorded, tmp_path, batch
):
    lay(tmp_path / "ck", recorded.captures[batch], ["j", "p"])
    inputs = {
        "j": json_files(spark, data / "j", per_batch=5),
        "p": parquet_files(spark, data / "p", per_batch=5),
    }
    resumed = run(inputs, tmp_path / "ck")
    assert resumed.query_id == recorded.query_id == recorded.captures[batch].query_id
    assert min(resumed.batches, default=batch + 1) == batch + 1
    assert sorted(recorded.rows(upto=batch) + resumed.rows()) == ALL


def test_a_log_that_was_compacted_at_another_interval_is_found_again(spark, tmp_path):
    """Of one compact entry Spark makes up an interval, and looks by it for others."""
    usual, seen, location, folder = 2, [], tmp_path / "first", tmp_path / "j"
    try:
        spark.conf.set(COMPACT_INTERVAL, str(usual))
        # With an interval of 2 entry 3 is the last compact one; then it is 4, and 7 is.
        for number, files in enumerate((5, 10, 12)):
            add_json(folder, *range(files))
            done = run({"j": json_files(spark, folder)}, location)
            seen += done.rows()
            log = done.captures[max(done.captures)]
            location = tmp_path / f"laid-{number}"
            lay(location, log, ["j"])
            spark.conf.set(COMPACT_INTERVAL, str(compact_interval(log, usual)))
    finally:
        spark.conf.unset(COMPACT_INTERVAL)
    assert sorted(seen) == sorted(("j", i) for i in range(12))


def test_the_log_of_files_goes_into_objects_once_and_comes_back_whole(recorded):
    for batch, root in recorded.roots.items():
        whole = SparkLog.from_json(with_texts(recorded.store, root))
        assert whole == recorded.captures[batch]
    nine, ten, twelve = (recorded.roots[batch] for batch in (9, 10, 12))
    (text,) = (one for one in nine.source_texts.texts if one.path[-1] == "9.compact")
    assert text.path == ["inputs", "j", "files", "9.compact"]
    assert len(nine.source["inputs"]["j"]["files"]["9.compact"]) < 64
    # The compacted log is stored once; of the entries behind it, each where it is so long.
    assert text in ten.source_texts.texts
    assert text in twelve.source_texts.texts
    assert not twelve.lost & {ref.key for ref in text.objects}


def test_captured_before_spark_commits_a_crash_loses_and_repeats_nothing(spark, data, tmp_path):
    inputs = {"j": json_files(spark, data / "j"), "p": parquet_files(spark, data / "p")}
    first = run(inputs, tmp_path / "first", crash_at=2)
    assert not (tmp_path / "first" / "commits" / "2").exists()

    lay(tmp_path / "second", first.captures[2], ["j", "p"])
    second = run(inputs, tmp_path / "second", crash_at=10)
    assert list(second.batches) == list(range(3, 11))

    lay(tmp_path / "third", second.captures[10], ["j", "p"])
    third = run(inputs, tmp_path / "third")
    assert min(third.batches) == 11
    assert sorted(first.rows() + second.rows() + third.rows()) == ALL
    assert first.query_id == second.query_id == third.query_id


def test_files_seen_before_stay_seen_and_new_ones_are_read(spark, tmp_path):
    add_json(tmp_path / "in", *range(11))
    inputs = {"in": json_files(spark, tmp_path / "in")}
    before = run(inputs, tmp_path / "first")
    last = max(before.batches)
    lay(tmp_path / "second", before.captures[last], ["in"])
    assert run(inputs, tmp_path / "second").batches == {}
    add_json(tmp_path / "in", 77)
    assert run(inputs, tmp_path / "second").batches == {last + 1: [("in", 77)]}


def test_inputs_in_another_order_keep_their_positions(spark, data, recorded, tmp_path):
    lay(tmp_path / "ck", recorded.captures[1], ["p", "j"])
    inputs = {
        "p": parquet_files(spark, data / "p"),
        "j": json_files(spark, data / "j", per_batch=20),
    }
    resumed = run(inputs, tmp_path / "ck")
    assert min(resumed.batches) == 2
    assert sorted(recorded.rows(upto=1) + resumed.rows()) == ALL


def test_a_new_input_is_read_from_its_beginning_and_then_captured(spark, data, recorded, tmp_path):
    add_json(tmp_path / "new", 200, 201)
    inputs = {
        "new": json_files(spark, tmp_path / "new"),
        "j": json_files(spark, data / "j", per_batch=20),
        "p": parquet_files(spark, data / "p", per_batch=20),
    }
    lay(tmp_path / "ck", recorded.captures[5], list(inputs))
    resumed = run(inputs, tmp_path / "ck")
    new = [("new", 200), ("new", 201)]
    assert sorted(recorded.rows(upto=5) + resumed.rows()) == sorted(ALL + new)

    add_json(tmp_path / "new", 202)
    lay(tmp_path / "again", resumed.captures[max(resumed.captures)], list(inputs))
    assert run(inputs, tmp_path / "again").rows() == [("new", 202)]


def test_a_dropped_input_is_refused_or_forgotten(spark, data, recorded, tmp_path):
    with pytest.raises(UserError, match="dropped"):
        lay(tmp_path / "ck", recorded.captures[10], ["j"])
    lay(tmp_path / "ck", recorded.captures[10], ["j"], allow_dropped=True)
    resumed = run({"j": json_files(spark, data / "j")}, tmp_path / "ck")
    assert sorted(resumed.batches) == [11, 12]
    assert sorted(recorded.rows(upto=10) + resumed.rows()) == ALL


def test_a_source_with_offsets_of_its_own_goes_on_where_it_was(spark, data, tmp_path):
    def inputs():
        return {"rate": rate(spark), "j": json_files(spark, data / "j")}

    first = run(inputs(), tmp_path / "first", crash_at=2)
    lay(tmp_path / "second", first.captures[2], ["rate", "j"])
    second = run(inputs(), tmp_path / "second", crash_at=4)
    rows = sorted(first.rows() + second.rows())
    assert list(second.batches) == [3, 4]
    assert [i for uid, i in rows if uid == "rate"] == list(range(10))
    assert len({i for uid, i in rows if uid == "j"}) == 5


def test_what_spark_pinned_in_the_offsets_stays_pinned(spark, data, tmp_path):
    inputs = {"j": json_files(spark, data / "j")}
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        first = run(inputs, tmp_path / "first", crash_at=1)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    lay(tmp_path / "second", first.captures[1], ["j"])
    second = run(inputs, tmp_path / "second", crash_at=2)
    pinned = json.loads(second.captures[2].header)["conf"]
    assert pinned["spark.sql.shuffle.partitions"] == "3"
