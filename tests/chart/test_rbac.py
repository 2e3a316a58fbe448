"""Roles: what the operator calls it may call, and nothing else."""

import ast

import pytest
from moorage_testing.chart import CASES, NAMESPACE, ROOT, of_kind

from moorage_operator.kube.rest import RESOURCES, resource_of

each_case = pytest.mark.parametrize("case", CASES)

# The verbs that a method of the Cluster port needs; server-side apply is a patch that may create.
VERBS = {
    "get": {"get"},
    "list": {"list"},
    "select": {"list"},
    "pages": {"list"},
    "apply": {"patch", "create"},
    "create": {"create"},
    "replace_status": {"update"},
    "patch": {"patch"},
    "delete": {"delete"},
}

BESIDE = ("PodDisruptionBudget", "PodMonitor", "Ingress")

# What is called with a body or a kind in a variable, by the file that does it. A new call fails a
# test until somebody has said here what it is about.
IMPLIED = {
    ("act.py", "create"): {"ControllerRevision", "StatefulSparkSnapshot"},
    ("act.py", "get"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("act.py", "patch"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("act.py", "delete"): {"StatefulSparkSnapshot"},
    ("app.py", "pages"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("attempts.py", "get"): {"Service", "ConfigMap", *BESIDE},
    ("attempts.py", "apply"): {"Service", "ConfigMap", *BESIDE},
    ("attempts.py", "create"): {"Pod", "Secret"},
    ("attempts.py", "delete"): {"Pod", "ConfigMap", *BESIDE},
    ("leader.py", "create"): {"Lease"},
    ("loop.py", "pages"): {"Service", *BESIDE},
    ("loop.py", "get"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("observe.py", "list"): {"ResourceQuota", "LimitRange"},
    ("pods.py", "create"): {"Pod"},
    ("shards.py", "patch"): {"StatefulSparkSnapshot"},
    ("shards.py", "replace_status"): {"StatefulSparkJob"},
    ("recorder.py", "create"): {"Event"},
    ("recorder.py", "patch"): {"StatefulSparkSnapshot"},
    ("recorder.py", "get"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("recorder.py", "replace_status"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("tokens.py", "create"): {"Secret"},
    ("uninstall.py", "get"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("uninstall.py", "list"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
    ("uninstall.py", "patch"): {"StatefulSparkJob", "StatefulSparkSnapshot"},
}
WATCHED = ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod")
CLUSTER = ("Node", "PriorityClass")


def calls():
    """Every call of the Cluster port in the operator: file, method, kind or None."""
    for path in sorted((ROOT / "operator" / "moorage_operator").rglob("*.py")):
        if path.parent.name == "kube":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            holder = ast.unparse(node.func.value)
            if node.func.attr in VERBS and holder.split(".")[-1] in {"cluster", "_cluster"}:
                named = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
                kind = next((one for one in named if one in RESOURCES), None)
                yield path.name, node.func.attr, kind


BY_LABEL = ("", "namespaces", "list")
"""Only where labels select namespaces."""


def needed():
    """(group, resource, verb) that the operator's code asks of the API server."""
    found = set()
    for file, method, kind in calls():
        for one in [kind] if kind else IMPLIED[file, method]:
            where = resource_of(one)
            plural = f"{where.plural}/status" if method == "replace_status" else where.plural
            found |= {(where.group, plural, verb) for verb in VERBS[method]}
    for kind in WATCHED:
        where = resource_of(kind)
        found |= {(where.group, where.plural, verb) for verb in ("list", "watch")}
    # Objects with blockOwnerDeletion may be made only by who may write the owner's finalizers.
    return (found - {BY_LABEL}) | {("moorage.dev", "statefulsparkjobs/finalizers", "update")}


def allowed(roles):
    """(group, resource, verb) that these roles allow."""
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def bound(objects, account, namespace):
    """The roles that a service account has, with the namespace of each, empty for all."""
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in of_kind(objects, "Role", "ClusterRole")
    }
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        subjects = [(s["name"], s["namespace"]) for s in binding["subjects"]]
        if (account, namespace) in subjects:
            kind = binding["roleRef"]["kind"]
            where = binding["metadata"].get("namespace", "")
            yield where, roles[kind, where if kind == "Role" else "", binding["roleRef"]["name"]]


def operators(objects):
    """The operator's roles by namespace."""
    (deployment,) = of_kind(objects, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    found: dict[str, list] = {}
    for where, role in bound(objects, account, NAMESPACE):
        found.setdefault(where, []).append(role)
    return found


def test_every_call_with_a_kind_in_a_variable_is_explained():
    silent = {(file, method) for file, method, kind in calls() if kind is None}
    assert silent == set(IMPLIED)


def test_an_operator_of_all_namespaces_may_do_what_its_code_does_and_no_more(rendered):
    roles = operators(rendered["default"])
    own = allowed(roles[NAMESPACE])
    assert {resource for _, resource, _ in own} == {"leases"}
    assert allowed(roles[""]) | own == needed()


def test_an_operator_that_reads_no_secrets_of_jobs_may_read_them_only_where_jobs_are(rendered):
    """Their tokens are Secrets, too, and have no names that a role could list."""
    roles = operators(rendered["full"])
    assert ("", "secrets", "get") not in allowed(roles[""])
    assert allowed(roles["streams"]) == {("", "secrets", "get")}
    everywhere = allowed(roles[""]) | allowed(roles["streams"]) | allowed(roles[NAMESPACE])
    assert everywhere == needed() | {BY_LABEL}


@pytest.mark.parametrize("namespace", ["jobs-a", "jobs-b"])
def test_an_operator_of_some_namespaces_may_do_the_same_in_each(rendered, namespace):
    roles = operators(rendered["namespaced"])
    plurals = {resource_of(kind).plural for kind in CLUSTER} | {"leases"}
    wanted = {one for one in needed() if one[1] not in plurals}
    assert allowed(roles[namespace]) == wanted


def test_without_cluster_scoped_rights_there_is_nothing_outside_of_namespaces(rendered):
    assert of_kind(rendered["namespaced"], "ClusterRole", "ClusterRoleBinding") == []
    assert set(operators(rendered["namespaced"])) == {"jobs-a", "jobs-b", NAMESPACE}


LABELLED = ("--set", "watchNamespaceSelector=moorage.dev/jobs=yes")


def test_an_operator_of_namespaces_with_a_label_may_list_namespaces_beside(template):
    objects = template(*LABELLED)
    roles = operators(objects)
    assert set(roles) == {"", NAMESPACE}
    assert allowed(roles[""]) | allowed(roles[NAMESPACE]) == needed() | {BY_LABEL}
    (job,) = of_kind(objects, "Job")
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert BY_LABEL in allowed(role for _, role in bound(objects, account, NAMESPACE))


WATCHED_TWO = ("--set", "watchNamespaces={jobs-a,jobs-b}")


def test_an_operator_of_some_namespaces_may_let_go_in_one_whose_roles_went_first(template):
    (role,) = [
        role
        for role in operators(template(*WATCHED_TWO))[""]
        if role["metadata"]["name"].endswith("-let-go")
    ]
    kinds = ("statefulsparkjobs", "statefulsparksnapshots")
    wanted = {("moorage.dev", kind, verb) for kind in kinds for verb in ("get", "list", "patch")}
    assert allowed([role]) == wanted | {("", "namespaces", "get")}
    (names,) = [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule]
    assert names == ["jobs-a", "jobs-b"]


def test_a_release_goes_though_one_of_its_namespaces_is_gone(template):
    """Nothing of its hook has to be made in them."""
    objects = template(*WATCHED_TWO)
    (job,) = of_kind(objects, "Job")
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert {where for where, _ in bound(objects, account, NAMESPACE)} == {"", NAMESPACE}


@pytest.mark.parametrize(
    ("case", "namespaces"), [("default", [""]), ("namespaced", ["jobs-a", "jobs-b"])]
)
def test_who_tidies_up_after_a_release_may_do_that_and_no_more(rendered, case, namespaces):
    (job,) = of_kind(rendered[case], "Job")
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    kinds = ("statefulsparkjobs", "statefulsparksnapshots")
    verbs = ("get", "list", "patch")
    wanted = {("moorage.dev", kind, verb) for kind in kinds for verb in verbs}
    found = {where: allowed([role]) for where, role in bound(rendered[case], account, NAMESPACE)}
    assert found == {NAMESPACE: {("", "pods", "list")}, **dict.fromkeys(namespaces, wanted)}


@each_case
def test_nobody_may_do_everything(rendered, case):
    for role in of_kind(rendered[case], "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


@each_case
def test_every_binding_names_a_role_that_is_there(rendered, case):
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
        for one in of_kind(rendered[case], "Role", "ClusterRole")
    }
    for binding in of_kind(rendered[case], "RoleBinding", "ClusterRoleBinding"):
        reference = binding["roleRef"]
        where = binding["metadata"].get("namespace", "")
        assert (reference["kind"], where, reference["name"]) in roles


@each_case
def test_every_binding_is_of_an_account_that_the_chart_makes(rendered, case):
    accounts = {
        (one["metadata"]["name"], one["metadata"]["namespace"])
        for one in of_kind(rendered[case], "ServiceAccount")
    }
    for binding in of_kind(rendered[case], "RoleBinding", "ClusterRoleBinding"):
        assert {(s["name"], s["namespace"]) for s in binding["subjects"]} <= accounts


def test_the_lease_is_the_only_one_that_may_be_written(rendered):
    (role,) = operators(rendered["default"])[NAMESPACE]
    for rule in role["rules"]:
        if not {*rule["verbs"]} <= {"create", "get"}:
            assert rule["resourceNames"] == ["boat-moorage-leader"]


@pytest.mark.parametrize(
    ("case", "namespaces"),
    [
        ("default", []),
        ("namespaced", ["jobs-a", "jobs-b"]),
        ("full", ["streams"]),
        ("minimal", []),
    ],
)
def test_drivers_may_make_executors_and_read_no_secrets(rendered, case, namespaces):
    found = []
    for namespace in namespaces:
        ((where, role),) = bound(rendered[case], "spark", namespace)
        found.append(where)
        resources = {resource for _, resource, _ in allowed([role])}
        assert resources == {"pods", "configmaps", "services", "persistentvolumeclaims"}
        assert ("", "pods", "deletecollection") in allowed([role])
    assert found == namespaces


@each_case
def test_what_running_jobs_need_outlives_the_release(rendered, case):
    jobs = [
        one
        for one in of_kind(rendered[case], "ServiceAccount", "Role", "RoleBinding")
        if one["metadata"]["name"] in {"spark", "spark-driver"}
    ]
    assert len(jobs) % 3 == 0
    for one in jobs:
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_token_of_the_jobs_account_is_mounted_only_where_the_operator_says_so(rendered):
    for account in of_kind(rendered["default"], "ServiceAccount"):
        if account["metadata"]["name"] == "spark":
            assert account["automountServiceAccountToken"] is False
