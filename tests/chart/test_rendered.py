"""What Helm makes of the chart, for each of its cases."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from moorage_testing.chart import CASES, CHART, NAMESPACE, RELEASE, ROOT, of_kind
from moorage_testing.crd import structural_faults

from moorage_api.fleet import read_fleet
from moorage_operator.settings import Settings, read_settings

GOLDEN = Path(__file__).parent / "golden"
DNS = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
CLUSTER_WIDE = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding")
DIGEST = f"sha256:{'0' * 64}"
POD_NAME, POD_NAMESPACE = "boat-moorage-abc", NAMESPACE

each_case = pytest.mark.parametrize("case", CASES)


def name_of(one):
    meta = one["metadata"]
    return (one["kind"], meta.get("namespace", ""), meta["name"])


def pod_of(objects):
    (deployment,) = of_kind(objects, "Deployment")
    return deployment["spec"]["template"]


def container_of(objects):
    (container,) = pod_of(objects)["spec"]["containers"]
    return container


@each_case
def test_what_tidies_up_after_a_release_is_no_part_of_it_and_leaves_only_its_log(rendered, case):
    """A hook with an account that is deleted with the release could do nothing any more."""
    hooks = [
        one for one in rendered[case] if "helm.sh/hook" in one["metadata"].get("annotations", {})
    ]
    jobs = of_kind(hooks, "Job")
    assert bool(jobs) == bool(hooks) == (case != "minimal")
    for one in hooks:
        notes = one["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "post-delete"
        gone = "before-hook-creation" if one in jobs else "before-hook-creation,hook-succeeded"
        assert notes["helm.sh/hook-delete-policy"] == gone
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        accounts = {one["metadata"]["name"] for one in of_kind(hooks, "ServiceAccount")}
        assert spec["serviceAccountName"] in accounts
        assert job["spec"]["ttlSecondsAfterFinished"]
        (container,) = spec["containers"]
        assert container["image"] == container_of(rendered[case])["image"]
        labels = next(a for a in container["args"] if a.startswith("--operator-labels="))
        pairs = dict(pair.split("=") for pair in labels.partition("=")[2].split(","))
        assert pairs.items() <= pod_of(rendered[case])["metadata"]["labels"].items()
        own = job["spec"]["template"]["metadata"]["labels"]
        assert not pairs.items() <= own.items()


def environment(objects):
    """The variables as the operator's process finds them."""
    fields = {"metadata.name": POD_NAME, "metadata.namespace": POD_NAMESPACE}
    found = {}
    for variable in container_of(objects)["env"]:
        place = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = variable.get("value", fields.get(place))
    return found


@each_case
def test_helm_has_nothing_to_complain_about(helm, case):
    helm("lint", "--strict", CHART, "--values", CHART / "ci" / f"{case}-values.yaml")


@each_case
def test_no_two_objects_have_one_name(rendered, case):
    names = Counter(name_of(one) for one in rendered[case])
    assert [name for name, count in names.items() if count > 1] == []


@each_case
def test_every_object_says_where_it_belongs(rendered, case):
    """Without a namespace of its own an object would land wherever `helm template` is piped to."""
    for one in rendered[case]:
        kind, namespace, name = name_of(one)
        assert bool(namespace) != (kind in CLUSTER_WIDE), name_of(one)
        assert DNS.fullmatch(name), name


@each_case
def test_every_object_of_ours_has_the_common_labels(rendered, case):
    for one in rendered[case]:
        labels = one["metadata"].get("labels", {})
        if one["kind"] == "CustomResourceDefinition":
            continue
        if one["metadata"]["name"].endswith("-extra"):
            continue
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/part-of"] == "moorage"


@each_case
def test_selectors_find_the_operators_pod_and_no_job(rendered, case):
    labels = pod_of(rendered[case])["metadata"]["labels"]
    selectors = [
        one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        for one in of_kind(rendered[case], "Deployment", "Service", "PodDisruptionBudget")
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        # Pods of jobs have the name moorage, and the job's name as their instance.
        assert selector["app.kubernetes.io/name"] != "moorage"


def test_the_selector_is_the_same_for_every_version(rendered):
    """A Deployment's selector cannot change: an upgrade would be refused."""
    (deployment,) = of_kind(rendered["default"], "Deployment")
    assert deployment["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "moorage-operator",
        "app.kubernetes.io/instance": RELEASE,
    }


@each_case
def test_the_monitors_find_the_ports_that_there_are(rendered, case):
    ports = {port["name"] for port in container_of(rendered[case])["ports"]}
    services = of_kind(rendered[case], "Service")
    for service in services:
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for monitor in of_kind(rendered[case], "ServiceMonitor"):
        (service,) = services
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= service["metadata"]["labels"].items()
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {
            port["name"] for port in service["spec"]["ports"]
        }


@each_case
def test_probes_ask_a_port_that_the_container_has(rendered, case):
    container = container_of(rendered[case])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert set(ports.values()) == {int(environment(rendered[case])["MOORAGE_HEALTH_PORT"])}


@each_case
def test_the_pod_fits_the_strictest_pod_security_level(rendered, case):
    spec, container = pod_of(rendered[case])["spec"], container_of(rendered[case])
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert spec["securityContext"]["runAsNonRoot"] is True
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all("hostPath" not in volume for volume in spec["volumes"])
    assert not any("hostPort" in port for port in container["ports"])


@each_case
def test_the_user_of_the_pod_is_the_images(rendered, case):
    image = (ROOT / "Dockerfile").read_text()
    user, group = re.findall(r"^USER (\d+):(\d+)", image, re.MULTILINE)[0]
    security = pod_of(rendered[case])["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))


@each_case
def test_what_is_mounted_is_a_volume_and_tmp_may_be_written(rendered, case):
    spec, container = pod_of(rendered[case])["spec"], container_of(rendered[case])
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@each_case
def test_no_secret_is_made_and_none_stands_in_a_variable(rendered, case):
    assert of_kind(rendered[case], "Secret") == []
    names = {variable["name"] for variable in container_of(rendered[case])["env"]}
    telling = {name for name in names if re.search("KEY|TOKEN|PASSWORD|CREDENTIAL", name)}
    assert telling <= {"MOORAGE_OWN_CREDENTIALS"}


@each_case
def test_the_operator_takes_the_settings_that_it_is_given(rendered, case):
    settings = read_settings([], environment(rendered[case]))
    assert settings.namespace == NAMESPACE
    assert settings.identity == POD_NAME


def test_the_values_defaults_are_the_operators_own(rendered):
    """Two truths about a default would drift apart."""
    given = read_settings([], environment(rendered["default"])).model_dump()
    own = Settings().model_dump()
    different = {name for name in own if given[name] != own[name]}
    assert different == {"identity", "namespace", "lease_name"}


def test_every_setting_of_the_operator_has_a_value(rendered):
    """But for those that make no sense in a pod."""
    names = set(environment(rendered["namespaced"]))
    # With shards there are several operators: tests/chart/test_shards.py.
    names |= {"MOORAGE_SHARD", "MOORAGE_SHARDS"}
    # Of the cases below.
    names |= {"MOORAGE_STORE_ENDPOINTS", "MOORAGE_WATCH_NAMESPACE_SELECTOR"}
    settings = {f"MOORAGE_{name.upper()}" for name in Settings.model_fields}
    no_sense = {"MOORAGE_KUBECONFIG", "MOORAGE_CONTEXT", "MOORAGE_HEALTH_HOST"}
    assert settings - names == no_sense
    assert names <= settings


def test_values_reach_the_operators_settings(rendered):
    settings = read_settings([], environment(rendered["full"]))
    assert settings.cluster_id == "prod-eu"
    assert settings.log_level == "debug"
    assert settings.log_format == "text"
    assert settings.resync == 60
    assert settings.read_secrets is False
    assert settings.store_endpoints == ("https://minio.stores:9000",)
    assert read_settings([], environment(rendered["namespaced"])).watch_namespaces == (
        "jobs-a",
        "jobs-b",
    )
    assert read_settings([], environment(rendered["minimal"])).leader_election is False


def test_labels_of_namespaces_reach_the_operator_and_what_tidies_up_after_it(template):
    objects = template("--set", "watchNamespaceSelector=team in (a\\,b)")
    settings = read_settings([], environment(objects))
    assert settings.watch_namespace_selector == "team in (a,b)"
    (job,) = of_kind(objects, "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "--watch-namespace-selector=team in (a,b)" in container["args"]
    assert f"--leases={settings.namespace}/{settings.lease}" in container["args"]


def test_the_fleet_file_is_mounted_where_the_operator_reads_it(rendered):
    (file,) = [one for one in rendered["full"] if one["metadata"]["name"].endswith("-fleet")]
    fleet = read_fleet(file["data"]["fleet.yaml"].encode())
    assert (fleet.problems, fleet.limits("jobs-a").executors) == ((), 64)
    assert fleet.profile("jobs-b", None).values == {"checkpoint": {"interval": "30s"}}
    for case, name in (("full", file["metadata"]["name"]), ("namespaced", "rules")):
        settings = read_settings([], environment(rendered[case]))
        pod = pod_of(rendered[case])["spec"]
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert volumes["fleet"]["configMap"] == {"name": name, "optional": True}
        mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        assert str(settings.fleet) == f"{mounts['fleet']}/fleet.yaml"


def test_without_a_lease_two_operators_are_never_there_at_once(rendered):
    (alone,) = of_kind(rendered["minimal"], "Deployment")
    assert alone["spec"]["strategy"] == {"type": "Recreate"}
    (electing,) = of_kind(rendered["default"], "Deployment")
    assert electing["spec"]["strategy"] == {"type": "RollingUpdate"}


@pytest.mark.parametrize(
    ("options", "image"),
    [
        (["image.tag=1.2"], "moorage-operator:1.2"),
        (["image.registry=r:5000", "image.tag=1.2"], "r:5000/moorage-operator:1.2"),
        (["image.repository=a/b", "image.tag=1.2"], "a/b:1.2"),
        (
            ["image.tag=1.2", f"image.digest=sha256:{'0' * 64}"],
            f"moorage-operator@sha256:{'0' * 64}",
        ),
    ],
)
def test_the_image_is_put_together(template, options, image):
    assert container_of(template("--set", ",".join(options)))["image"] == image


# -- definitions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "kept"), [("default", True), ("full", True), ("disposable", False)]
)
def test_the_definitions_are_the_repositorys_but_for_the_mark_that_keeps_them(rendered, case, kept):
    made = {one["metadata"]["name"]: one for one in of_kind(rendered[case], *CLUSTER_WIDE[:1])}
    for path in (ROOT / "crds").glob("*.yaml"):
        wanted = yaml.safe_load(path.read_text())
        if kept:
            wanted["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        assert made.pop(path.stem) == wanted
    assert made == {}


def test_who_brings_definitions_along_gets_none(rendered):
    assert of_kind(rendered["minimal"], *CLUSTER_WIDE[:1]) == []


@each_case
def test_an_api_server_would_take_the_definitions(rendered, case):
    for crd in of_kind(rendered[case], "CustomResourceDefinition"):
        for version in crd["spec"]["versions"]:
            assert structural_faults(version["schema"]["openAPIV3Schema"]) == []


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["rbac.clusterScoped=false"], "list the namespaces in watchNamespaces"),
        (["rbac.clusterScoped=false", "watchNamespaces={a}"], "set clusterId"),
        (["watchNamespaces={a}", "jobs.namespaces={b}"], "add it to watchNamespaces"),
        (
            ["metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"],
            "set one of them to false",
        ),
        (
            ["metrics.serviceMonitor.enabled=true", "metrics.service.enabled=false"],
            "use metrics.podMonitor",
        ),
        (["settings.stopGrace=30"], "raise the first or lower the second"),
        (["replicas=2", "leaderElection.enabled=false"], "set it to true, or replicas to 1"),
        (["shards={a}", "leaderElection.enabled=false"], "set it to true, or shards to []"),
        (
            ["shards={aaaaaaaaaaaaaaaaaaaa}", f"fullnameOverride={'b' * 50}"],
            "would have 78 characters of at most 63; set a shorter fullnameOverride",
        ),
        (["fleet.configMap=a", "fleet.profile=b"], "leave out the other"),
        (["watchNamespaceSelector=a", "watchNamespaces={b}"], "leave out the other"),
        (
            ["watchNamespaceSelector=a", "rbac.clusterScoped=false"],
            "set rbac.clusterScoped to true",
        ),
        (["watchNamespaceSelector=a", "leaderElection.enabled=false"], "set it to true"),
        (["replicaCount=2"], "replicaCount"),
    ],
)
def test_values_that_do_not_go_together_are_refused(helm, options, message):
    done = helm("template", RELEASE, CHART, "--set", ",".join(options), check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_an_older_kubernetes_is_refused(helm):
    done = helm("template", RELEASE, CHART, "--kube-version", "1.28.4", check=False)
    assert done.returncode != 0
    assert "kubeVersion" in done.stderr


# -- schemas and golden files ------------------------------------------------------------------


@each_case
def test_every_object_fits_kubernetes_own_schema(rendered, case):
    validate = pytest.importorskip("kubernetes_validate")
    foreign = ("monitoring.coreos.com/v1", "apiextensions.k8s.io/v1")
    for one in rendered[case]:
        if one["apiVersion"] not in foreign:
            validate.validate(one, "1.35", strict=True)


def without_versions(objects):
    """A release changes no golden file."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    text = json.dumps(objects).replace(f"moorage-{chart['version']}", "moorage-CHART")
    return json.loads(text.replace(chart["appVersion"], "VERSION"))


@each_case
def test_the_objects_are_the_golden_ones(rendered, case):
    """But for definitions, which are compared above, and texts that other tests read."""
    made = [one for one in rendered[case] if one["kind"] != "CustomResourceDefinition"]
    made = [one for one in made if not name_of(one)[2].endswith("-dashboard")]
    made = without_versions(made)
    file = GOLDEN / f"{case}.yaml"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump_all(made, sort_keys=True, width=100))
        pytest.fail(f"{file.name} did not exist and was written: read it, then run again")
    assert made == list(yaml.safe_load_all(file.read_text()))


def test_there_is_no_golden_file_without_a_case():
    assert sorted(path.stem for path in GOLDEN.iterdir()) == CASES


def test_the_longest_release_in_the_longest_namespace_has_names_that_fit(helm):
    """Names of roles are path segments; all others may become labels or host names."""
    words = ("template", "a" * 53, CHART, "--namespace", "n" * 63)
    options = ("--set", "metrics.dashboard.enabled=true,networkPolicy.jobs.enabled=true")
    for one in yaml.safe_load_all(helm(*words, *options).stdout):
        if one and one["kind"] != "CustomResourceDefinition":
            longest = 253 if one["kind"] in CLUSTER_WIDE else 63
            assert len(name_of(one)[2]) <= longest, name_of(one)


@pytest.mark.parametrize("case", ["default", "namespaced"])
def test_the_notes_name_things_that_are_there(helm, case):
    if helm("version", "--short").stdout.startswith("v3"):
        pytest.skip("Helm 3 asks a cluster before it shows notes")
    words = ("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=client")
    text = helm(*words, "--values", CHART / "ci" / f"{case}-values.yaml").stdout
    notes = text.split("NOTES:", 1)[1]
    assert f"deployment/{RELEASE}-moorage" in notes
    assert "{{" not in notes
    assert "<no value>" not in notes
    assert len(max(notes.splitlines(), key=len)) <= 110
