"""Values: every one is documented, has its place in the schema, and a wrong one is refused."""

import copy
import json

import jsonschema
import pytest
import yaml
from moorage_testing.chart import CASES, CHART, chart_docs

DOCS = chart_docs()
TEXT = (CHART / "values.yaml").read_text()


def merged(base, over):
    """As Helm lays one file of values over another."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {**base, **{key: merged(base.get(key, {}), value) for key, value in over.items()}}


def leaves(values, path=()):
    """The paths of all values that are no mapping with entries."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key))


def refused(schema, **changes):
    """What the schema finds wrong when these values are set."""
    values = yaml.safe_load(TEXT)
    for path, value in changes.items():
        *above, last = path.split("__")
        place = values
        for step in above:
            place = place[step]
        place[last] = value
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(values)]


def test_the_schema_is_one(schema):
    jsonschema.Draft7Validator.check_schema(schema)


def test_the_chart_can_be_installed_without_any_value(schema, values):
    jsonschema.validate(values, schema)


@pytest.mark.parametrize("case", CASES)
def test_the_cases_of_ci_are_good_values(case, schema, values):
    text = (CHART / "ci" / f"{case}-values.yaml").read_text()
    jsonschema.validate(merged(values, yaml.safe_load(text)), schema)


def test_every_value_is_described():
    described = {path for path, _ in DOCS.documented(TEXT)}
    values = yaml.safe_load(TEXT)
    silent = [
        path
        for path in leaves(values)
        if not any(path == known or path.startswith(f"{known}.") for known in described)
    ]
    assert silent == []


def test_a_description_ends_as_a_sentence_and_belongs_to_a_value():
    values = yaml.safe_load(TEXT)
    for path, meaning in DOCS.documented(TEXT):
        assert meaning.endswith("."), path
        DOCS.value_at(values, path)
    marks = [line for line in TEXT.splitlines() if line.strip().startswith("# -- ")]
    assert len(marks) == len(list(DOCS.documented(TEXT)))


def test_the_schema_knows_exactly_the_values_that_there_are(schema, values):
    def unknown(node, value, path):
        known = node.get("properties")
        if known is None or node.get("additionalProperties") is not False:
            return []
        gone = [f"{path}{key}" for key in set(known) ^ set(value)]
        return gone + [
            name for key in value for name in unknown(known[key], value[key], f"{path}{key}.")
        ]

    # Helm gives `global` to every chart.
    assert unknown(schema, {**values, "global": {}}, "") == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image__pullPolicy", "Sometimes"),
        ("image__digest", "sha256:abc"),
        ("image__repository", "moorage-operator:1.0"),
        ("replicas", "1"),
        ("replicas", -1),
        ("logLevel", "chatty"),
        ("stores__readSecrets", "yes"),
        ("settings__resync", "30s"),
        ("settings__workers", 0),
        ("leaderElection__leaseDuration", 1),
        ("clusterId", "a b"),
        ("extraEnv", {"NAME": "value"}),
        ("extraEnv", [{"value": "x"}]),
        ("port", 70000),
        ("resources", {"limit": {}}),
        ("livenessProbe", {"httpGet": {}}),
        ("watchNamespaces", "jobs"),
        ("watchNamespaces", ["Jobs"]),
        ("shards", "a"),
        ("shards", 2),
        ("shards", ["A"]),
        ("shards", ["1"]),
        ("shards", ["a-"]),
        ("shards", ["a" * 21]),
        ("shards", ["a", "a"]),
        ("shards", [""]),
        ("jobs__namespaces", ["a/b"]),
        ("jobs__stateBackend", "batch"),
        ("fleet__profils", {}),
        ("fleet__profiles", []),
        ("fleet__configMap", "A"),
        ("jobs__stateBackend", "rocskdb"),
        ("jobs__serviceAccount__name", ""),
        ("commonLabels", {"team": "a b"}),
        ("networkPolicy__operator__apiServerPorts", []),
        ("networkPolicy__operator__apiServerCidrs", ["10.0.0.1"]),
        ("networkPolicy__jobs__metricsFrom", [{"podSelctor": {}}]),
        ("metrics__jobPodMonitors__jobs", ["clicks"]),
        ("metrics__prometheusRule__growthFactor", 1),
        ("metrics__serviceMonitor__interval", "often"),
        ("crds__keep", "yes"),
        ("uninstall__finalizers", "release"),
        ("imagePullSecrets", ["registry"]),
        ("replicaCount", 2),
    ],
)
def test_a_wrong_value_is_refused(schema, path, value):
    assert refused(schema, **{path: value})


@pytest.mark.parametrize("name", ["a", "a/b", "localhost/a", "registry:5000/a/b"])
def test_a_repository_may_bring_its_registry(schema, name):
    assert not refused(schema, image__repository=name)


def test_a_misspelt_name_is_refused_wherever_it_stands(schema, values):
    def closed(node):
        return "properties" in node and node.get("additionalProperties") is False

    def walk(node, value, path):
        yield path
        for key, inner in node["properties"].items():
            if closed(inner) and isinstance(value.get(key), dict):
                yield from walk(inner, value[key], (*path, key))

    for path in walk(schema, values, ()):
        wrong = copy.deepcopy(values)
        place = wrong
        for step in path:
            place = place[step]
        place["misspelt"] = 1
        assert list(jsonschema.Draft7Validator(schema).iter_errors(wrong)), path


def test_every_part_of_the_schema_is_closed(schema):
    """A mapping is closed, or open on purpose: its inside is Kubernetes' own."""

    def open_objects(node, path):
        if node.get("type") == "object" and "properties" in node:
            if node.get("additionalProperties") is not False and not path.endswith("env[]"):
                yield path
            for key, inner in node["properties"].items():
                yield from open_objects(inner, f"{path}.{key}")
        if isinstance(node.get("items"), dict):
            yield from open_objects(node["items"], f"{path}[]")

    assert list(open_objects(schema, "")) == []
    assert json.dumps(schema).count("misspelt") == 0
