"""What the API server refuses or rewrites in a single object, whatever was there before. Pure."""

import re
from base64 import b64encode

from moorage_testing.kube.merging import copied
from moorage_testing.kube.refusals import ApiRefusal

__all__ = ["check_form", "encoded", "fixed_of_pod"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def encoded(body):
    """With a Secret's stringData in its data, as the server keeps them."""
    if body["kind"] != "Secret" or "stringData" not in body:
        return body
    texts = {key: b64encode(value.encode()).decode() for key, value in body["stringData"].items()}
    rest = {key: value for key, value in body.items() if key != "stringData"}
    return {**rest, "data": {**rest.get("data", {}), **texts}}


def fixed_of_pod(pod):
    spec = copied(pod.get("spec", {}))
    for field in ("nodeName", "tolerations", "activeDeadlineSeconds"):
        spec.pop(field, None)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        container.pop("image", None)
    return spec


def check_form(key, found):
    """Names and labels that a server would refuse."""
    meta = found["metadata"]
    longest = 63 if key[0] in {"Service", "Namespace"} else 253
    if not _NAME.fullmatch(key[2]) or len(key[2]) > longest:
        raise ApiRefusal(422, "Invalid", f"metadata.name: Invalid value: {key[2]!r}")
    for name, value in meta.get("labels", {}).items():
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            raise ApiRefusal(422, "Invalid", f"metadata.labels: Invalid value: {name}={value!r}")
    notes = meta.get("annotations", {})
    if any(not isinstance(value, str) for value in notes.values()):
        raise ApiRefusal(400, "BadRequest", "metadata.annotations: values are strings")
    if sum(len(name) + len(value) for name, value in notes.items()) > 262_144:
        raise ApiRefusal(422, "Invalid", "metadata.annotations: Too long")
