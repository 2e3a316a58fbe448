import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moorage_api import ManifestError, load_manifest
from moorage_api.explain import judge
from moorage_api.job import StatefulSparkJob
from moorage_api.manifest import MAX_BYTES, parse_manifest

GOOD = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {name: clicks}
spec:
  application: {mainFile: job.py}
  scaling: {parallelism: 2}
  state: {checkpointDir: "file:///var/lib/clicks"}
"""


def test_every_problem_is_reported_at_once_with_its_line(problems_of):
    problems = problems_of("""\
        apiVersion: moorage.dev/v1alpha1
        kind: StatefulSparkJob
        metadata:
          name: Clicks
        spec:
          application:
            mainFile: job.py
          scaling:
            parallelism: 200
            maxParalellism: 128
          state:
            checkpointDir: file:///var/lib/clicks/
          checkpoint:
            interval: 1d
        """)
    assert [(p.field, p.line) for p in problems] == [
        ("metadata.name", 4),
        ("spec.scaling.parallelism", 9),
        ("spec.scaling.maxParalellism", 10),
        ("spec.state.checkpointDir", 12),
        ("spec.checkpoint.interval", 14),
    ]
    assert str(problems[2]) == (
        "spec.scaling.maxParalellism (line 10): is not a field; did you mean maxParallelism?"
    )


def test_a_rule_is_not_judged_on_a_field_that_is_wrong_itself(problems_of):
    text = GOOD.replace("parallelism: 2", "parallelism: 200, maxParallelism: many")
    assert [p.field for p in problems_of(text)] == ["spec.scaling.maxParallelism"]


def test_the_message_is_one_line_per_problem_under_the_file_name():
    with pytest.raises(ManifestError) as caught:
        parse_manifest(GOOD.replace("kind: StatefulSparkJob\n", "").encode(), "jobs/clicks.yaml")
    assert str(caught.value).splitlines() == [
        "jobs/clicks.yaml has 1 problem:",
        "  kind (line 1): is missing; add it: The kind of object",
    ]


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ("spec:\n  parallelism: 4", "did you mean spec.scaling.parallelism?"),
        ("spec:\n  failure_policy: {}", "did you mean failurePolicy?"),
        ("spec:\n  Image: x", "did you mean image?"),
        ("spec:\n  zzz: 1", "remove it; known here: application, bounded"),
    ],
)
def test_an_unknown_field_comes_with_a_suggestion(problems_of, wrong, fix):
    (problem,) = problems_of(GOOD.replace("spec:", wrong))
    assert problem.reason == "is not a field"
    assert problem.fix.startswith(fix)


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ("", "is empty", None),
        ("# only a comment\n", "is empty", None),
        ("---\n...\n", "is empty", None),
        ("- a\n- b\n", "is a list and not a mapping", 1),
        ("just words", "is text and not a mapping", 1),
        ("42", "is a number and not a mapping", 1),
        (GOOD + "---\n" + GOOD, "has 2 documents", 9),
        ("a: [1, 2\n", "is not YAML", 2),
        ("a: b: c\n", "is not YAML: mapping values are not allowed here at column 5", 1),
        ("a:\n\t- b\n", "is not YAML: a tab where spaces are needed at column 1", 2),
        ("a: !!python/object:os.system {}\n", "is not YAML: could not determine", 1),
        ("a: *nowhere\n", "is not YAML: found undefined alias", 1),
        ("a: &a [*a]\n", "has an alias inside itself", 1),
        ("a: 2026-99-99\n", "holds a date or number that does not exist", None),
        ("[" * 5000, "is nested too deeply", None),
        ("a: \x00", "is not text that YAML knows", None),
    ],
)
def test_a_file_that_is_no_manifest_says_what_it_is(text, reason, line):
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode(), "job.yaml")
    problem = caught.value.problems[0]
    assert problem.reason.startswith(reason)
    assert problem.line == line


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory(problems_of):
    lines = ["a0: &a0 [1, 2]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 64)]
    (problem,) = problems_of("\n".join(lines))
    assert problem.reason == "has too many values"


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ManifestError, match="is not text that YAML knows; save it as UTF-8"):
        parse_manifest(b"a: \xff\xfe\xff", "job.yaml")


def test_a_file_beyond_the_size_of_any_manifest_is_not_parsed():
    with pytest.raises(ManifestError, match=f"keep it under {MAX_BYTES}"):
        parse_manifest(b"#" * (MAX_BYTES + 1), "job.yaml")


def test_a_key_given_twice_is_refused_because_one_would_win_in_silence(problems_of):
    (problem,) = problems_of(GOOD + "  state: {checkpointDir: 'file:///b'}\n")
    assert str(problem) == "spec.state (line 8): is given twice, first on line 7; keep one"


def test_a_merge_key_and_an_alias_work_as_in_any_yaml():
    text = GOOD.replace("scaling: {parallelism: 2}", "scaling: {<<: &p {parallelism: 3}}")
    assert parse_manifest(text.encode(), "job.yaml").spec.scaling.parallelism == 3


def test_a_null_is_the_same_as_leaving_the_field_out():
    text = GOOD + "  image:\n  epoch:\n"
    assert parse_manifest(text.encode(), "job.yaml").spec.image is None


def test_another_kind_is_one_problem_and_not_a_hundred(problems_of):
    (problem,) = problems_of("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 3}\n")
    assert (problem.field, problem.line) == ("kind", 2)
    assert problem.fix == "write StatefulSparkJob"


def test_another_version_is_named_with_the_one_to_write(problems_of):
    (problem,) = problems_of(GOOD.replace("v1alpha1", "v1"))
    assert problem.field == "apiVersion"
    assert "moorage.dev/v1beta1" in problem.fix


def test_either_version_is_taken():
    beta = parse_manifest(GOOD.replace("v1alpha1", "v1beta1").encode(), "job.yaml")
    assert beta.spec == parse_manifest(GOOD.encode(), "job.yaml").spec


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("file:///var/lib/clicks", "s3://me:hunter22secret@b/c"),
        GOOD
        + "  sparkConf: {hunter22secret: 1}\n".replace("hunter22secret: 1", "a: hunter22secret"),
        GOOD + "  application2: hunter22secret\n",
        GOOD + "  state2: {secretKey: hunter22secret}\n",
        GOOD + "  image: [hunter22secret]\n",
        GOOD + "  checkpoint: hunter22secret\n",
        GOOD.replace("job.py}", "job.py, env: [{name: A, value: [hunter22secret]}]}"),
        GOOD + "  restore: {path: 'hunter22secret",
    ],
)
def test_a_message_never_repeats_what_may_be_a_secret(text):
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode(), "job.yaml")
    assert "hunter22secret" not in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_loader_fail_in_another_way(data):
    with pytest.raises(ManifestError):
        parse_manifest(data, "job.yaml")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    place=st.sampled_from(["metadata", "spec", "scaling", "state", "env", "restore"]), value=_JSON
)
def test_any_value_in_any_place_is_judged_without_a_crash(manifest_text, place, value):
    with contextlib.suppress(ManifestError):
        parse_manifest(manifest_text(place, value), "job.yaml")


@pytest.fixture(scope="session")
def manifest_text():
    def build(place, value):
        data = yaml.safe_load(GOOD)
        if place in ("metadata", "spec"):
            data[place] = value
        elif place == "env":
            data["spec"]["application"]["env"] = value
        else:
            data["spec"][place] = value
        return yaml.safe_dump(data).encode()

    return build


def test_a_missing_file_a_directory_and_an_unreadable_file_are_told_apart(tmp_path: Path):
    with pytest.raises(ManifestError, match="does not exist; check the path"):
        load_manifest(tmp_path / "none.yaml")
    for number in range(7):
        (tmp_path / f"{number}.yaml").touch()
    (tmp_path / "job.py").touch()
    named = "check the path; there is 0.yaml, 1.yaml, 2.yaml, 3.yaml, 4.yaml and 2 more"
    with pytest.raises(ManifestError, match=named):
        load_manifest(tmp_path / "none.yaml")
    with pytest.raises(ManifestError, match="is a directory; name the YAML file in it; there is 0"):
        load_manifest(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ManifestError, match="cannot be read: Not a directory"):
        load_manifest(tmp_path / "file" / "job.yaml")


@pytest.mark.parametrize("text", ["def build(env):\n    ...\n", "a: int = 1\n", ""])
def test_a_job_file_in_place_of_its_manifest_is_told_so_whatever_yaml_makes_of_it(tmp_path, text):
    (tmp_path / "job.py").write_text(text)
    told = "is a file of Python and not a manifest; name the manifest that has it as "
    with pytest.raises(
        ManifestError, match=rf"{told}spec.application.mainFile; `moorage init DIR`"
    ):
        load_manifest(tmp_path / "job.py")
    (tmp_path / "clicks.yaml").touch()
    with pytest.raises(ManifestError, match=r"spec.application.mainFile; there is clicks.yaml$"):
        load_manifest(tmp_path / "job.py")


def test_what_another_release_wrote_may_hold_fields_that_are_none_here():
    """A person's own manifest may not: what is misspelt would do nothing."""
    body = yaml.safe_load(GOOD)
    body["spec"] |= {"fromTheFuture": {"enabled": True}, "image": "a:1"}
    body["spec"]["application"]["fromTheFuture"] = 1
    job = judge(body, unknown="ignore")
    assert isinstance(job, StatefulSparkJob)
    assert job.spec.image == "a:1"
    with pytest.raises(ManifestError, match="fromTheFuture"):
        parse_manifest(yaml.safe_dump(body).encode(), "job.yaml")
    body["spec"]["scaling"]["parallelism"] = "two"
    found = judge(body, unknown="ignore")
    assert isinstance(found, list)
    assert [finding.path for finding in found] == [("spec", "scaling", "parallelism")]
