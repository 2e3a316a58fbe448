import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage_state.errors import Bug, CorruptState, UserError
from moorage_state.snapshots import Manifest, encode_manifest, manifest_digest
from moorage_state.snapshots.manifest import decode_manifest

NewManifest = Callable[..., Manifest]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def resealed(body: bytes, version: int = 1) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"MOORAGE-MANIFEST {version} sha256:{digest} {len(body)}\n".encode() + body


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None
)
@given(opaque=st.dictionaries(st.text(max_size=8), PLAIN, max_size=3))
def test_a_manifest_reads_back_equal(new_manifest: NewManifest, opaque: dict[str, Any]) -> None:
    manifest = new_manifest(3, source=opaque, extra=opaque, sinks={"out": [opaque]})
    assert decode_manifest(encode_manifest(manifest), "x") == manifest


def test_a_person_can_read_and_check_it(new_manifest: NewManifest) -> None:
    header, _, body = encode_manifest(new_manifest(3)).partition(b"\n")
    magic, version, digest, size = header.decode().split(" ")
    assert (magic, version, size) == ("MOORAGE-MANIFEST", "1", str(len(body)))
    assert digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert json.loads(body)["operators"]["counts"]["parallelism"] == 2
    assert len(body.splitlines()) > 50


def test_equal_manifests_have_equal_bytes(new_manifest: NewManifest) -> None:
    one = new_manifest(3, source={"a": 1, "b": 2})
    two = new_manifest(3, source={"b": 2, "a": 1})
    assert encode_manifest(one) == encode_manifest(two)


def test_a_flipped_bit_anywhere_in_a_manifest_is_found(new_manifest: NewManifest) -> None:
    good = encode_manifest(new_manifest(3))
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptState, match="path=the manifest"):
            decode_manifest(bytes(bad), "the manifest")
    for position in range(120):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptState):
                decode_manifest(bytes(bad), "the manifest")


@pytest.mark.parametrize("cut", [0, 1, 40, 110, 500, -1])
def test_a_truncated_or_padded_manifest_is_found(new_manifest: NewManifest, cut: int) -> None:
    good = encode_manifest(new_manifest(3))
    for bad in (good[:cut], good + good[:cut] + b"\n"):
        with pytest.raises(CorruptState) as caught:
            decode_manifest(bad, "chk-3/MANIFEST")
        assert caught.value.path == "chk-3/MANIFEST"
        assert "older checkpoint" in caught.value.advice


def test_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(UserError, match="written by a newer moorage: path=x format=3 known=2"):
        decode_manifest(resealed(b'{"format":3,"what":"ever"}\n', version=3), "x")


def test_an_unknown_field_is_refused_not_dropped(new_manifest: NewManifest) -> None:
    body = encode_manifest(new_manifest(3)).partition(b"\n")[2]
    changed = body.replace(b'"job_name"', b'"job_title": "x", "job_name"')
    with pytest.raises(UserError, match=r"newer moorage.*path=x .*job_title"):
        decode_manifest(resealed(changed), "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"name": "CURRENT"', b'"name": "../../x"'),
        (b'"name": "CURRENT"', b'"name": "a/b"'),
        (b'"key": "chk-3/', b'"key": "../x/'),
        (b'"key": "chk-3/', b'"key": "/etc/'),
        (b'"start": 0', b'"start": 1'),
        (b'"bytes_total": ', b'"bytes_total": 9'),
        (b'"uid": "counts"', b'"uid": "other"'),
        (b'"counts": {', b'"../counts": {'),
    ],
)
def test_a_manifest_that_would_lead_a_restore_astray_is_refused(
    new_manifest: NewManifest, old: bytes, new: bytes
) -> None:
    body = encode_manifest(new_manifest(3)).partition(b"\n")[2]
    assert old in body
    with pytest.raises(UserError):
        decode_manifest(resealed(body.replace(old, new, 1)), "x")


def test_an_incomplete_manifest_is_never_written(new_manifest: NewManifest) -> None:
    whole = new_manifest(3)
    operator = whole.operators["counts"]
    first, second = operator.subtasks
    for subtasks, parallelism in (
        ([first], 2),
        ([first], 1),
        ([second, first], 2),
        ([first, msgspec.structs.replace(second, end=126)], 2),
        ([first, msgspec.structs.replace(second, start=65)], 2),
        ([first, msgspec.structs.replace(second, bytes_total=1)], 2),
    ):
        part = msgspec.structs.replace(operator, subtasks=subtasks, parallelism=parallelism)
        with pytest.raises(Bug, match="not complete"):
            encode_manifest(msgspec.structs.replace(whole, operators={"counts": part}))


@pytest.mark.parametrize(
    "source", [{"x": b"bytes"}, {"x": (1, 2)}, {"x": float("nan")}, {1: "x"}, {"x": {1, 2}}]
)
def test_opaque_parts_that_are_no_json_are_never_written(
    new_manifest: NewManifest, source: Any
) -> None:
    with pytest.raises(Bug):
        encode_manifest(new_manifest(3, source=source))


def test_the_digest_covers_the_header_too(new_manifest: NewManifest) -> None:
    data = encode_manifest(new_manifest(3))
    assert manifest_digest(data) == f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_manifest_from_before_formats_were_settled_is_refused() -> None:
    with pytest.raises(UserError, match="development version of moorage: path=x format=0"):
        decode_manifest(resealed(b'{"format":0}\n', version=0), "x")
