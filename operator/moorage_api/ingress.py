"""Where a job's page is to be found from outside: what `spec.observability.ui` makes of a template.

Pure. A template is a host, a path, or both, as an Ingress has them; `{{namespace}}` and `{{name}}`
in it are those of the job. Called by the operator, which makes the Ingress, and before that by
whoever judges a manifest.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moorage_api.lifecycle import Ui
from moorage_api.problems import Problem

_FIELD = "spec.observability.ui"
_PLACE = re.compile(r"\{\{\s*(\w*)\s*\}\}")
_KNOWN = ("namespace", "name")
_HOST = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
_LONGEST_HOST = 253
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_EXPRESSION = re.compile(r"[()\[\]*+?|^$\\]")
"""In a path: it is none, but what some controllers take for an expression."""
_PATH = re.compile(r"[A-Za-z0-9/_.~%!&',:=@()\[\]*+?|^$\\-]*")
"""Nothing that would end what a controller writes into its configuration."""
_OURS = "moorage.dev/"
_SNIPPET = "-snippet"
"""The end of annotations whose text goes into a controller's own configuration."""
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}")
_LABEL = re.compile(rf"({_NAME})?")


@dataclass(frozen=True, slots=True)
class Place:
    """What an Ingress rule says."""

    host: str  # empty for any
    path: str
    path_type: str

    @property
    def url(self) -> str:
        """For people, as far as it is known."""
        return f"{self.host}{self.path}"


def ingress_place(ui: Ui, namespace: str, name: str) -> Place:
    """Where the template puts a job's page; good if `ingress_problems` has nothing to say."""
    values = {"namespace": namespace, "name": name}
    text = _PLACE.sub(lambda found: values.get(found[1], found[0]), ui.ingress_template.strip())
    host, slash, path = text.partition("/")
    path = f"{slash}{path}" if slash else "/"
    plain = _EXPRESSION.search(path) is None
    return Place(host, path, "Prefix" if plain else "ImplementationSpecific")


def ingress_problems(ui: Ui, namespace: str, name: str) -> Iterator[Problem]:
    """What no Ingress could be made of."""
    if ui.ingress_template:
        yield from _template(ui, namespace, name)
    yield from _names(ui)
    for kind, given in (("annotations", ui.annotations), ("labels", ui.labels)):
        for key, value in given.items():
            field = f"{_FIELD}.{kind}[{key!r}]"
            if not _KEY.fullmatch(key):
                yield Problem(field, f"is no name of one of {kind}", "write example.com/name")
            elif key.startswith(_OURS):
                yield Problem(field, "is the operator's own", "choose another name")
            elif kind == "labels" and not _LABEL.fullmatch(value):
                fix = "write at most 63 letters, digits, -, _ and ."
                yield Problem(field, f"is {value[:80]}, which no label can be", fix)
            elif key.lower().endswith(_SNIPPET):
                reason = "puts text into the configuration of all that the controller serves"
                yield Problem(field, reason, "leave it out, or make an Ingress by hand")


def _template(ui: Ui, namespace: str, name: str) -> Iterator[Problem]:
    field, text = f"{_FIELD}.ingressTemplate", ui.ingress_template
    if "://" in text:
        yield Problem(field, f"is {text}, with a scheme", "write a host and a path without one")
        return
    unknown = [one for one in _PLACE.findall(text) if one not in _KNOWN]
    if unknown or re.search(r"[{}]", _PLACE.sub("", text)):
        reason = f"is {text}, with braces that mean nothing"
        yield Problem(field, reason, "write {{namespace}} and {{name}}, and no other braces")
        return
    place = ingress_place(ui, namespace, name)
    if not place.host and not place.path.strip("/"):
        reason = "asks for every path of every host"
        yield Problem(field, reason, "write a host, a path, or both")
    if place.host and (len(place.host) > _LONGEST_HOST or not _HOST.fullmatch(place.host)):
        reason = f"makes the host {place.host}, which is none"
        yield Problem(field, reason, "write a host such as {{name}}.{{namespace}}.example.com")
    parts = place.path.split("/")
    if re.search(r"\s|//", place.path) or {".", ".."} & set(parts):
        reason = f"makes the path {place.path}, with a space, or a part that is empty or of dots"
        yield Problem(field, reason, "write a path such as /{{namespace}}/{{name}}")
    elif not _PATH.fullmatch(place.path):
        reason = f"makes the path {place.path}, with a sign that no path of an Ingress may have"
        yield Problem(field, reason, "write a path such as /{{namespace}}/{{name}}")


def _names(ui: Ui) -> Iterator[Problem]:
    given = [("className", ui.class_name)]
    for number, one in enumerate(ui.tls):
        given.append((f"tls[{number}].secretName", one.secret_name))
        given += [(f"tls[{number}].hosts", host.removeprefix("*.")) for host in one.hosts]
    for field, name in given:
        if name and (len(name) > _LONGEST_HOST or not _OBJECT.fullmatch(name)):
            fix = "write letters of the lower case, digits, - and ."
            yield Problem(f"{_FIELD}.{field}", f"is {name[:80]}, which is no name", fix)
