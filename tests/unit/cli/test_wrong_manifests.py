"""Wrong manifests: `validate` says what `run` says, all of it at once, in golden words.

After a wanted change of words: MOORAGE_UPDATE_GOLDEN=1 and read the difference.
"""

import os
import textwrap
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "wrong-manifests.txt"
HEAD = "apiVersion: moorage.dev/v1alpha1\nkind: StatefulSparkJob\nmetadata: {name: clicks}\n"
APPLICATION = "application: {mainFile: job.py}"
SCALING = "scaling: {parallelism: 2}"
STATE = 'state: {checkpointDir: "file://./state"}'


def manifest(*spec, head=HEAD, application=APPLICATION, scaling=SCALING, state=STATE):
    lines = "\n".join((application, scaling, state, *spec))
    return f"{head}spec:\n{textwrap.indent(lines, '  ')}\n"


def options(**given):
    inner = ", ".join(f'"state.backend.{key}": "{value}"' for key, value in given.items())
    return f'state: {{checkpointDir: "file://./state", options: {{{inner}}}}}'


WRONG = {
    "an unknown option of the backend": manifest(state=options(**{"rocksdb.thread.nun": "4"})),
    "two wrong values of options": manifest(
        state=options(**{"rocksdb.thread.num": "many", "rocksdb.writebuffer.size": "-1"})
    ),
    "an option that has its own field": manifest(state=options(incremental="true")),
    "an option that is too small": manifest(state=options(**{"rocksdb.block.blocksize": "12"})),
    "an option that is a number": manifest(
        state='state: {checkpointDir: "file://./state", options: {a: 4}, backend: rocksbd}'
    ),
    "an unknown backend": manifest(
        state='state: {checkpointDir: "file://./state", backend: rocksbd}'
    ),
    "a backend's factory that is not there": manifest(
        state='state: {checkpointDir: "file://./state", backend: no.such.Factory}'
    ),
    "a backend for input that ends": manifest(
        state='state: {checkpointDir: "file://./state", backend: batch}'
    ),
    "a job file that is not there": manifest(application="application: {mainFile: jobb.py}"),
    "a job file that is not Python": manifest(application="application: {mainFile: broken.py}"),
    "a job file without build": manifest(application="application: {mainFile: empty.py}"),
    "a job file whose build takes nothing": manifest(
        application="application: {mainFile: bare.py}"
    ),
    "a file of code that is not there": manifest(
        application="application: {mainFile: job.py, pyFiles: [helpers.py, more.zip]}"
    ),
    "a type that is wrong beside everything else": manifest(
        "bounded: please",
        "savepoint: {schedule: {cron: 0 3 * * *}}",
        application="application: {mainFile: jobb.py}",
        state=options(**{"rocksdb.thread.num": "many"}),
    ),
    "a required field of a wrong type beside everything else": manifest(
        "restore: {mode: Snapshot, snapshotName: one}",
        scaling="scaling: {parallelism: two}",
        state=options(**{"rocksdb.thread.num": "many"}),
    ),
    "a field in the wrong place": manifest("parallelism: 2", scaling="scaling: {paralelism: 2}"),
    "no application": manifest("image: a/b:1", application="bounded: true"),
    "a list for a mapping": manifest(application="application: [job.py]"),
    "a bucket with a short name": manifest(state='state: {checkpointDir: "s3://ab/state"}'),
    "a bucket with a name that no server takes": manifest(
        state='state: {checkpointDir: "s3://My_Bucket/state", savepointDir: "s3://my-bucket/s/"}'
    ),
    "directories in one another": manifest(
        state='state: {checkpointDir: "file://./state", savepointDir: "file://./state/sp"}'
    ),
    "no kind and a bad name": manifest(head="apiVersion: moorage.dev/v1\nmetadata: {name: A b}\n"),
    "a key given twice beside a wrong value": manifest(
        "bounded: true", "bounded: false", scaling="scaling: {parallelism: 0}"
    ),
    "a schedule and a batch job that does not end": manifest(
        "savepoint: {schedule: {cron: 0 3 * * *}}",
        state='state: {checkpointDir: "file://./state", backend: batch}',
    ),
    "durations and sizes without their units": manifest(
        "checkpoint: {interval: 10, cron: often}",
        "driver: {memory: 1GB}",
    ),
}


@pytest.fixture
def told(moorage, job_file):
    """What a command says of a manifest, with the folder taken out of it."""
    folder = job_file.parent
    (folder / "broken.py").write_text("import os\n\ndef build(env)\n    pass\n")
    (folder / "empty.py").write_text("import os\n")
    (folder / "bare.py").write_text("import os\n\ndef build():\n    pass\n")

    def tell(text, *command):
        job_file.write_text(text)
        status, out, err = moorage(*command, job_file, runner=forbidden)
        assert (status, out) == (2, "")
        return err.replace(f"{folder}/", "")

    return tell


def forbidden(*_arguments):
    pytest.fail("something was run")


def golden():
    parts = f"\n{GOLDEN.read_text()}".split("\n# ")[1:] if GOLDEN.exists() else []
    texts = (part.partition("\n") for part in parts)
    return {name: f"{text.rstrip()}\n" for name, _, text in texts}


def test_there_are_golden_words_for_each():
    assert list(golden()) == list(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_validate_and_run_say_the_same_of_a_wrong_manifest(told, name):
    said = told(WRONG[name], "validate")
    assert told(WRONG[name], "run") == said
    if os.environ.get("MOORAGE_UPDATE_GOLDEN"):
        found = {**golden(), name: said}
        texts = (f"# {one}\n{found[one]}" for one in WRONG if one in found)
        GOLDEN.write_text("\n".join(texts))
    assert said == golden()[name]
