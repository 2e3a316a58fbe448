import json

import pytest
from msgspec import structs

from moorage.engine.sparklog import InputLog, SparkLog, capture, compact_interval, lay
from moorage_state.errors import CorruptState, UserError

HEADER = '{"batchWatermarkMs":%d,"batchTimestampMs":5,"conf":{"a":"b\u2028c"}}'


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def entry(number):
    return f'v1\n{{"path":"file:///in/{number}.json","timestamp":1,"batchId":{number}}}'


def checkpoint(root, batch, *, files, rate=True):
    """A location at `batch`: a file source whose log has `files`, and another kind of source."""
    write(root / "metadata", '{"id":"q-1"}')
    for number in range(max(0, batch - 1), batch + 1):
        other = json.dumps({"offset": number}) if rate else "-"
        text = f'v1\n{HEADER % (number * 10)}\n{{"logOffset":{number}}}\n{other}'
        write(root / "offsets" / str(number), text)
    for name in files:
        write(root / "sources" / "0" / name, entry(name))
        write(root / "sources" / "0" / f".{name}.crc", "\x00")
    write(root / "sources" / "1" / "0", "\x00v1\nstart")
    write(root / "sources" / "1" / "deep" / "er", "more")
    return root


def everything(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes().decode()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def log(tmp_path):
    return capture(checkpoint(tmp_path / "ck", 2, files=["0", "1", "2"]), 2, ["files", "rate"])


def test_laid_in_the_same_order_it_is_what_spark_wrote_and_the_commit(tmp_path, log):
    lay(tmp_path / "new", log, ["files", "rate"])
    before, after = everything(tmp_path / "ck"), everything(tmp_path / "new")
    assert after.pop("commits/2") == 'v1\n{"nextBatchWatermarkMs":20}'
    assert after == {path: text for path, text in before.items() if not path.endswith(".crc")}


def test_the_first_batch_has_no_batch_before_it(tmp_path):
    log = capture(checkpoint(tmp_path / "ck", 0, files=["0"]), 0, ["files", "rate"])
    lay(tmp_path / "new", log, ["files", "rate"])
    assert sorted(path.name for path in (tmp_path / "new" / "offsets").iterdir()) == ["0"]


def test_inputs_are_laid_in_the_order_of_the_new_plan(tmp_path, log):
    lay(tmp_path / "new", log, ["rate", "files"])
    laid = everything(tmp_path / "new")
    assert laid["offsets/2"].split("\n")[2:] == ['{"offset": 2}', '{"logOffset":2}']
    assert laid["offsets/1"].split("\n")[2:] == ['{"offset": 1}', '{"logOffset":1}']
    assert laid["sources/0/deep/er"] == "more"
    assert laid["sources/1/2"] == entry("2")


def test_a_new_input_starts_from_its_beginning(tmp_path, log):
    lay(tmp_path / "new", log, ["more", "files", "rate"])
    laid = everything(tmp_path / "new")
    for batch in "12":
        assert laid[f"offsets/{batch}"].split("\n")[2] == "-"
    assert not any(path.startswith("sources/0/") for path in laid)
    assert laid["sources/1/2"] == entry("2")


def test_a_dropped_input_is_refused_by_name(tmp_path, log):
    with pytest.raises(UserError, match=r"dropped=\['rate'\].*allowNonRestoredState"):
        lay(tmp_path / "new", log, ["files"])
    assert not (tmp_path / "new").exists()


def test_a_dropped_input_is_forgotten_when_that_is_allowed(tmp_path, log):
    lay(tmp_path / "new", log, ["files"], allow_dropped=True)
    assert everything(tmp_path / "new")["offsets/2"].split("\n")[2:] == ['{"logOffset":2}']


def test_an_input_that_has_delivered_nothing_has_no_files(tmp_path):
    root = checkpoint(tmp_path / "ck", 1, files=["0", "1"], rate=False)
    log = capture(root, 1, ["files", "rate"])
    assert log.inputs["rate"].offset is None
    assert log.inputs["rate"].files == {}


def test_a_uid_used_twice_is_refused(tmp_path, log):
    with pytest.raises(UserError, match=r"twice: uids=\['files'\]"):
        lay(tmp_path / "new", log, ["files", "rate", "files"])


def test_entries_past_the_offset_are_left_out(tmp_path):
    names = ["0", "1", "2", "3", "4"]
    log = capture(checkpoint(tmp_path / "ck", 2, files=names), 2, ["files", "rate"])
    assert sorted(log.inputs["files"].files) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("batch", "names", "kept"),
    [
        (8, [*map(str, range(9)), "9.compact"], [*map(str, range(9))]),
        (9, [*map(str, range(9)), "9.compact"], ["9.compact"]),
        (11, ["8", "9.compact", "10", "11"], ["10", "11", "9.compact"]),
        (20, ["9.compact", "18", "19.compact", "20", "21"], ["19.compact", "20"]),
    ],
)
def test_of_a_compacted_log_only_what_is_needed_is_kept(tmp_path, batch, names, kept):
    log = capture(checkpoint(tmp_path / "ck", batch, files=names), batch, ["files", "rate"])
    assert sorted(log.inputs["files"].files) == sorted(kept)


@pytest.mark.parametrize("names", [["0", "2"], ["0", "1"], []])
def test_a_gap_in_the_log_of_files_is_refused(tmp_path, names):
    root = checkpoint(tmp_path / "ck", 2, files=names)
    with pytest.raises(CorruptState, match="gap"):
        capture(root, 2, ["files", "rate"])


@pytest.mark.parametrize("name", ["metadata", "offsets/2", "offsets/1"])
def test_a_missing_file_is_named(tmp_path, name):
    root = checkpoint(tmp_path / "ck", 2, files=["0", "1", "2"])
    (root / name).unlink()
    with pytest.raises(CorruptState, match=name):
        capture(root, 2, ["files", "rate"])


def test_another_number_of_inputs_is_refused(tmp_path):
    root = checkpoint(tmp_path / "ck", 2, files=["0", "1", "2"])
    with pytest.raises(CorruptState, match="offsets=2 inputs=1"):
        capture(root, 2, ["files"])


def test_offsets_of_an_unknown_version_are_refused(tmp_path):
    root = checkpoint(tmp_path / "ck", 2, files=["0", "1", "2"])
    write(root / "offsets" / "2", "v2\n{}")
    with pytest.raises(CorruptState, match="version=v2"):
        capture(root, 2, ["files", "rate"])


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_metadata_without_an_id_is_refused(tmp_path, text):
    root = checkpoint(tmp_path / "ck", 0, files=["0"])
    write(root / "metadata", text)
    with pytest.raises(CorruptState, match="query id"):
        capture(root, 0, ["files", "rate"])


def test_files_that_are_not_text_are_refused(tmp_path):
    root = checkpoint(tmp_path / "ck", 0, files=["0"])
    (root / "sources" / "1" / "blob").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"not text: path=.*blob"):
        capture(root, 0, ["files", "rate"])


def test_it_survives_json(log):
    assert SparkLog.from_json(json.loads(json.dumps(log.to_json()))) == log


@pytest.mark.parametrize("data", [{}, {"inputs": []}, {"inputs": {"a": {"offset": None}}}])
def test_json_of_another_shape_is_refused(data):
    with pytest.raises(CorruptState, match="cannot be read"):
        SparkLog.from_json(data)


@pytest.mark.parametrize("name", ["../../metadata", "/etc/passwd"])
def test_a_path_that_leads_out_is_refused_and_nothing_stays(tmp_path, log, name):
    data = log.to_json()
    data["inputs"]["files"]["files"][name] = "x"
    with pytest.raises(CorruptState, match="outside"):
        lay(tmp_path / "out" / "new", SparkLog.from_json(data), ["files", "rate"])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_location_in_use_is_refused_and_left_as_it_is(tmp_path, log):
    write(tmp_path / "new" / "metadata", "mine")
    with pytest.raises(UserError, match="not empty"):
        lay(tmp_path / "new", log, ["files", "rate"])
    assert everything(tmp_path / "new") == {"metadata": "mine"}


def test_an_empty_directory_will_do(tmp_path, log):
    (tmp_path / "new").mkdir()
    lay(tmp_path / "new", log, ["files", "rate"])
    assert (tmp_path / "new" / "commits" / "2").exists()


@pytest.mark.parametrize(
    ("files", "last", "wanted"),
    [
        ([], 0, 10),
        (["0", "1"], 1, 10),
        (["9.compact", "10"], 10, 10),
        # Spark went by 20 since entry 19 was the only compact one; 10 divides 40 as well.
        (["39.compact", *map(str, range(40, 54))], 53, 15),
        (list(map(str, range(15))), 14, 16),
    ],
)
def test_spark_is_to_look_for_no_compact_entry_that_is_not_there(log, files, last, wanted):
    offset = json.dumps({"logOffset": last})
    inputs = {**log.inputs, "files": InputLog(offset, None, dict.fromkeys(files, "v1"))}
    assert compact_interval(structs.replace(log, inputs=inputs), 10) == wanted
