import hashlib

import pytest

from moorage.driver.settings import JobSettings
from moorage.offline.lookup import SnapshotDirectories, directories_of, find
from moorage_api import ManifestError, load_manifest
from moorage_state.errors import CorruptState, UserError
from moorage_state.stores.addresses import without_links

JOB = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {name: clicks}
spec:
  application: {mainFile: job.py}
  scaling: {parallelism: 2}
  state:
    checkpointDir: %s
    savepointDir: %s
    s3: {endpoint: "http://host:8333", pathStyle: true}
"""


@pytest.mark.parametrize("form", ["{}/chk-2", "file://{}/chk-2", "file://{}/chk-2/"])
def test_a_checkpoint_is_found_by_its_path(directory, form):
    found = find(form.format(directory))
    assert found.snapshot.manifest.checkpoint_id == 2
    assert found.snapshot.path == f"file://{directory}/chk-2"


def test_a_checkpoint_is_found_by_directory_and_name(directory):
    assert find(str(directory), "chk-2").snapshot.manifest.checkpoint_id == 2


def test_a_directory_stands_for_its_restore_point(directory):
    assert find(str(directory)).snapshot.manifest.checkpoint_id == 3


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(directory):
    with pytest.raises(UserError, match="retained are: chk-3, chk-2"):
        find(str(directory / "chk-1"))


def test_a_missing_directory_is_told_from_an_empty_one_and_a_foreign_one(tmp_path):
    with pytest.raises(UserError, match=r"of this name: path=.*gone; .* mount that"):
        find(str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"does not exist.*mount its volume"):
        find(str(tmp_path / "gone" / "deeper"))
    with pytest.raises(UserError, match="nothing is stored there; name a checkpoint directory"):
        find(str(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"found=notes.txt"):
        find(str(tmp_path))


def test_a_manifest_may_have_any_name(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(JOB % ("file://./state", "file://./saves"))
    found = directories_of(str(path))
    assert found.checkpoints == f"file://{tmp_path}/state"
    assert directories_of(str(tmp_path / "other.json")).checkpoints.endswith("/other.json")


def test_a_name_that_no_savepoint_has_is_told_with_where_names_are_listed(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB % ("file://./state", "file://./saves"))
    (tmp_path / "saves").mkdir()
    with pytest.raises(UserError, match=r"name=before; moorage snapshots ls JOB\.yaml lists"):
        find(str(path), "before")


def test_a_savepoint_that_was_never_completed_is_named_so(tmp_path):
    (tmp_path / "ATTEMPT").write_text("a")
    with pytest.raises(UserError, match="begun and never completed"):
        find(str(tmp_path))


def test_a_savepoint_of_a_newer_moorage_asks_for_an_upgrade(tmp_path):
    body = b'{"format": 3}\n'
    digest = hashlib.sha256(body).hexdigest()
    header = f"MOORAGE-MANIFEST 3 sha256:{digest} {len(body)}\n".encode()
    (tmp_path / "MANIFEST").write_bytes(header + body)
    with pytest.raises(UserError, match=r"newer moorage.*upgrade moorage"):
        find(str(tmp_path))


def test_a_damaged_manifest_is_named(directory):
    manifest = directory / "chk-3" / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(CorruptState, match=r"does not match its checksum.*chk-3/MANIFEST"):
        find(str(directory))


def test_a_name_cannot_lead_out_of_the_directory(directory):
    with pytest.raises(UserError, match="not a name of a snapshot"):
        find(str(directory), "../other")


def test_a_manifest_of_a_job_stands_for_its_directories(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB % ("file://./state", "s3://bucket/saves"))
    assert directories_of(str(path)) == SnapshotDirectories(
        f"file://{tmp_path}/state",
        "s3://bucket/saves?endpoint=http://host:8333&path_style=true",
    )


@pytest.mark.parametrize("name", ["a%20b", "50%", "a b", "a=b"])
def test_tools_look_where_a_run_of_the_job_keeps_its_state(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "job.py").touch()
    path = folder / "job.yaml"
    path.write_text(JOB % ("file://./state", "file://./saves"))
    settings, found = JobSettings.of(load_manifest(path), folder), directories_of(str(path))
    for url in (settings.checkpoint_dir, found.checkpoints):
        assert without_links(url) == f"file://{folder.resolve()}/state"
    for saves in (settings.savepoint_dir, found.savepoints):
        assert saves is not None
        assert without_links(saves) == f"file://{folder.resolve()}/saves"
    if "%" not in name:
        # As it always was: it names the lineage's folder of scratch, and the door to the run.
        assert settings.checkpoint_dir == f"file://{folder.resolve()}/state"


def test_a_wrong_manifest_of_a_job_is_refused_with_its_problems(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("kind: Nonsense\n")
    with pytest.raises(ManifestError):
        directories_of(str(path))


def test_a_job_file_in_place_of_its_manifest_is_no_directory(tmp_path):
    (tmp_path / "job.py").write_text("import moorage\n")
    with pytest.raises(ManifestError, match="is a file of Python and not a manifest"):
        directories_of(str(tmp_path / "job.py"))
