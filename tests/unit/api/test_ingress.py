"""Where a job's page is to be found from outside, and what no Ingress could be made of."""

import pytest
from moorage_testing.manifests import job_object, spec_data

from moorage_api import JobSpec, StatefulSparkJob
from moorage_api.cluster import cluster_problems
from moorage_api.ingress import ingress_place
from moorage_api.lifecycle import Ui
from moorage_api.unsupported import without_effect


def ui(template="", **given):
    return Ui.model_validate({"ingressTemplate": template, **given})


@pytest.mark.parametrize(
    ("template", "host", "path", "path_type"),
    [
        ("{{name}}.{{namespace}}.example.com", "clicks.team.example.com", "/", "Prefix"),
        ("example.com/{{namespace}}/{{name}}", "example.com", "/team/clicks", "Prefix"),
        ("/{{namespace}}/{{ name }}/", "", "/team/clicks/", "Prefix"),
        ("example.com/{{name}}(/|$)(.*)", "example.com", "/clicks(/|$)(.*)", None),
        (" example.com ", "example.com", "/", "Prefix"),
    ],
)
def test_a_template_is_a_host_a_path_or_both(template, host, path, path_type):
    place = ingress_place(ui(template), "team", "clicks")
    assert (place.host, place.path) == (host, path)
    assert place.path_type == (path_type or "ImplementationSpecific")


def problems(**given):
    spec = spec_data(observability={"ui": given})
    body = job_object(spec, namespace="team")
    found = cluster_problems(StatefulSparkJob.model_validate(body))
    return [str(one) for one in found if ".ui" in one.field]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://example.com/{{name}}", "write a host and a path without one"),
        ("{{cluster}}.example.com", "and no other braces"),
        ("{name}.example.com", "write {{namespace}} and {{name}}"),
        ("{{name}}.Example.com", "makes the host clicks.Example.com, which is none"),
        ("-a.example.com", "write a host such as"),
        ("*.example.com", "which is none"),
        (f"{'a' * 64}.example.com", "which is none"),
        ("example.com:8080/a", "which is none"),
        ("example.com/a b", "with a space, or a part that is empty"),
        ("example.com//a", "with a space, or a part that is empty"),
        ("example.com/a/../b", "or of dots"),
        ('example.com/a"b;', "no path of an Ingress may have"),
        ("example.com/a#b", "no path of an Ingress may have"),
        ("   ", "every path of every host"),
        ("/", "every path of every host"),
    ],
)
def test_what_makes_no_host_or_path_is_refused_with_what_to_write(template, words):
    (found,) = problems(ingressTemplate=template)
    assert found.startswith("spec.observability.ui.ingressTemplate: ")
    assert words in found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"annotations": {"a b": "c"}}, "is no name of one of annotations"),
        ({"labels": {"moorage.dev/job": "other"}}, "is the operator's own"),
        ({"labels": {"a": "b c"}}, "which no label can be"),
        ({"className": "Bad Class"}, "className: is Bad Class, which is no name"),
        ({"tls": [{"hosts": ["*.a.com", "Bad_Host"]}]}, "tls[0].hosts: is Bad_Host"),
        ({"tls": [{"hosts": [], "secretName": "a b"}]}, "tls[0].secretName: is a b"),
        ({"annotations": {"a.io/Server-Snippet": "x"}}, "make an Ingress by hand"),
        (
            {"annotations": {"nginx.ingress.kubernetes.io/server-snippet": "return 200;"}},
            "leave it out, or make an Ingress by hand",
        ),
    ],
)
def test_annotations_and_labels_that_cannot_be_or_reach_too_far_are_refused(given, words):
    (found,) = problems(ingressTemplate="example.com", **given)
    assert words in found


def test_what_is_right_is_taken():
    given = {
        "ingressTemplate": "streams.example.com/{{namespace}}/{{name}}",
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS", "note": "a b"},
        "labels": {"team": "a"},
        "tls": [{"hosts": ["streams.example.com"], "secretName": "streams-tls"}],
    }
    assert problems(**given) == []


def test_how_an_ingress_is_to_be_says_nothing_where_none_is_asked_for():
    spec = JobSpec.model_validate(spec_data(observability={"ui": {"className": "nginx"}}))
    (found,) = without_effect(spec)
    assert found.field == "spec.observability.ui"
    assert "ingressTemplate" in found.fix
