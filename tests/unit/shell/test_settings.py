"""Settings: flags over environment over defaults, and nothing misspelt goes unnoticed."""

from pathlib import Path

import pytest

from moorage_operator.settings import Settings, SettingsError, flag_of, read_settings

DOCS = Path(__file__).parents[3] / "docs" / "operator.md"


def test_nothing_need_be_set():
    assert read_settings([], {"PATH": "/bin"}) == Settings()


def test_flags_win_over_the_environment():
    found = read_settings(["--workers", "3"], {"MOORAGE_WORKERS": "5", "MOORAGE_RESYNC": "7.5"})
    assert (found.workers, found.resync) == (3, 7.5)


def test_namespaces_are_a_list_with_commas():
    assert read_settings(["--watch-namespaces", "a, b,"], {}).watch_namespaces == ("a", "b")


GOOD = ["a=b", "a==b,!c", "team in (a, b),x.y/z", "team notin (a),b!=c", "moorage.dev/jobs="]


@pytest.mark.parametrize("selector", GOOD)
def test_namespaces_may_be_those_with_labels(selector):
    found = read_settings(["--watch-namespace-selector", f" {selector} "], {})
    assert found.watch_namespace_selector == selector


@pytest.mark.parametrize("selector", ["a=b=c", "team in a", "a b", ",a", "-a", "a in (b", "a;b"])
def test_a_selector_that_no_api_server_takes_is_refused(selector):
    with pytest.raises(SettingsError, match=r"selects by no label: write a=b"):
        read_settings([f"--watch-namespace-selector={selector}"], {})


def test_labels_of_namespaces_go_with_no_names_and_need_a_lease():
    selector = ["--watch-namespace-selector", "a=b"]
    with pytest.raises(SettingsError, match="only one of them can hold"):
        read_settings([*selector, "--watch-namespaces", "x"], {})
    with pytest.raises(SettingsError, match="needs a Lease"):
        read_settings([*selector, "--leader-election", "false"], {})


@pytest.mark.parametrize(("text", "value"), [("false", False), ("1", True), ("off", False)])
def test_switches_are_words(text, value):
    assert read_settings([], {"MOORAGE_LEADER_ELECTION": text}).leader_election is value


@pytest.mark.parametrize("name", ["rocksdb", "hashmap", "acme.backends:Fast"])
def test_jobs_may_have_any_backend_by_default_that_serves_all_of_them(name):
    assert read_settings([], {"MOORAGE_STATE_BACKEND": name}).state_backend == name


@pytest.mark.parametrize("name", ["batch", "forst", "rocskdb", ""])
def test_a_default_backend_that_cannot_serve_every_job_is_refused(name):
    with pytest.raises(SettingsError, match=r"--state-backend .* backend"):
        read_settings([], {"MOORAGE_STATE_BACKEND": name})


def test_a_misspelt_variable_is_refused():
    with pytest.raises(SettingsError, match="MOORAGE_WORKER: is not a setting"):
        read_settings([], {"MOORAGE_WORKER": "3"})


def test_what_kubernetes_puts_there_is_passed_over():
    noise = {"MOORAGE_OPERATOR_SERVICE_HOST": "10.0.0.1", "MOORAGE_POD_NAME": "p"}
    assert read_settings([], noise) == Settings()


def test_a_misspelt_flag_ends_with_usage(capsys):
    with pytest.raises(SystemExit):
        read_settings(["--worker", "3"], {})
    assert "--worker" in capsys.readouterr().err


def test_every_wrong_value_is_named_with_both_names():
    with pytest.raises(SettingsError) as wrong:
        read_settings([], {"MOORAGE_WORKERS": "many", "MOORAGE_HEALTH_PORT": "99999"})
    text = str(wrong.value)
    assert "--workers (MOORAGE_WORKERS)" in text
    assert "'99999'" in text


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_described_here_and_in_the_docs(name):
    assert Settings.model_fields[name].description
    assert f"`{flag_of(name)}`" in DOCS.read_text()


def test_a_shard_has_a_lease_of_its_own():
    leases = [
        read_settings(["--shards", "a,b", *more], {}).lease
        for more in ([], ["--shard", "a"], ["--shard", "b"], ["--shard", "b", "--lease-name", "x"])
    ]
    assert leases == ["moorage-operator", "moorage-operator-a", "moorage-operator-b", "x"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shards", "a,a"], "a is named twice"),
        (["--shards", "A"], "no name of a shard: at most 20"),
        (["--shards", "1a"], "the first is a letter"),
        (["--shards", "a" * 21], "no name of a shard"),
        (["--shards", "a-"], "no name of a shard"),
        (["--shards", "a", "--shard", "A"], "no name of a shard"),
        (["--shard", "a"], "is none of --shards: value='a' shards=none; add it there"),
        (["--shards", "b,c", "--shard", "a"], "shards=b, c"),
        (["--shards", "a", "--leader-election", "false"], "set --leader-election true"),
    ],
)
def test_shards_that_cannot_be_are_refused_with_the_fix(words, message):
    with pytest.raises(SettingsError, match=message):
        read_settings(words, {})
