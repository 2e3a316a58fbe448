"""The chart's own pods are of the profile `restricted`, in each of its cases."""

import pytest
from moorage_testing.chart import CASES, of_kind
from moorage_testing.pod_security import violations


@pytest.mark.parametrize("case", CASES)
def test_every_pod_of_the_chart_is_restricted(rendered, case):
    makers = of_kind(rendered[case], "Deployment", "Job")
    assert "Deployment" in {one["kind"] for one in makers}
    found = {one["metadata"]["name"]: violations(one["spec"]["template"]["spec"]) for one in makers}
    assert {name: broken for name, broken in found.items() if broken} == {}
