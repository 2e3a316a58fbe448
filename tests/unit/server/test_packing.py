"""What becomes of the files of an upload: a pure decision."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.errors import StateSizeExceeded
from moorage_state.server import RangeSpec, UploadLimits
from moorage_state.server.uploads import LocalFile, plan_upload, require_room, side_by_side
from moorage_state.snapshots import MAX_INLINE_BYTES, FileRef
from moorage_state.tuning import MAX_STATE_SIZE_KEY

KB = 1000


def file(part, name, size, content=""):
    digest = hashlib.sha256((content or f"{part}/{name}").encode()).hexdigest()
    return LocalFile(part, Path(f"/ckpt/{part}/{name}"), size, digest)


def ref(known, key, **changes):
    fields = {"name": "old.sst", "key": key, "size": known.size, "sha256": known.sha256}
    return FileRef(**(fields | {"shared": True} | changes))


def plan(parts, bases=None, **limits):
    return plan_upload(parts, bases or [[] for _ in parts], UploadLimits(**limits))


def test_a_range_that_is_small_as_a_whole_goes_into_its_handle():
    small = [file(0, "CURRENT", 16), file(0, "1.sst", 10 * KB)]
    large = [file(1, "CURRENT", 16), file(1, "OPTIONS-7", 8 * KB), file(1, "1.sst", 30 * KB)]
    made = plan([small, large])
    assert made.inline == {*small, large[0]}
    assert [pack.files for pack in made.packs] == [(large[1],), (large[2],)]


def test_what_the_base_has_is_referenced_unless_the_range_is_small_enough_to_be_inline():
    small, large = file(0, "1.sst", 10 * KB), file(1, "1.sst", 30 * KB)
    bases = [[ref(small, "shared/a")], [ref(large, "shared/b", offset=7)]]
    made = plan([[small], [large]], bases)
    assert made.inline == {small}
    assert made.known == {large: bases[1][0]}
    assert made.packs == made.alone == ()


def test_a_base_is_of_use_to_its_own_range_only():
    one, other = file(0, "1.sst", 30 * KB, "same"), file(1, "1.sst", 30 * KB, "same")
    made = plan([[one], [other]], [[ref(one, "shared/a")], []])
    assert set(made.known) == {one}
    assert [pack.files for pack in made.packs] == [(other,)]


def test_neither_inline_nor_private_files_of_a_base_are_referenced():
    table, options = file(0, "1.sst", 30 * KB), file(0, "OPTIONS-7", 8 * KB)
    base = [
        ref(table, "", inline=b"x" * table.size),
        ref(options, "chk-1/f1r0/pack-0-0-9", shared=False),
    ]
    made = plan([[table, options]], [base])
    assert made.known == {}
    assert {f for pack in made.packs for f in pack.files} == {table, options}


def test_large_files_are_objects_of_their_own():
    table, private = file(0, "1.sst", 1 << 20), file(0, "MANIFEST-5", 2 << 20)
    assert plan([[table, private]]).alone == (table, private)


def test_private_and_shared_files_never_share_a_pack():
    made = plan([[file(0, "1.sst", 30 * KB), file(0, "OPTIONS-7", 8 * KB)]])
    assert [(pack.shared, len(pack.files)) for pack in made.packs] == [(False, 1), (True, 1)]


def test_equal_content_is_packed_once():
    parts = [[file(n, "OPTIONS-7", 8 * KB, "same"), file(n, "1.sst", 30 * KB)] for n in range(50)]
    private, shared = plan(parts).packs
    assert private.files == (parts[0][0],)
    assert len(shared.files) == 50


def test_a_thousand_ranges_are_a_few_dozen_objects_and_not_six_thousand():
    parts = [
        [
            file(n, "CURRENT", 16),
            file(n, "MANIFEST-5", 500),
            file(n, "OPTIONS-7", 8 * KB, "same"),
            *(file(n, f"{m}.sst", 30 * KB) for m in range(3)),
        ]
        for n in range(1000)
    ]
    made = plan(parts)
    size = sum(f.size for part in parts for f in part if f.shared)
    assert len(made.packs) + len(made.alone) <= 2 + size // UploadLimits().pack
    assert sum(f.size for f in made.inline) <= MAX_INLINE_BYTES


def test_files_without_bytes_are_inline_however_little_is_allowed():
    empty = file(0, "empty", 0)
    assert plan([[empty]], inline_range=0, inline_file=-1, inline_total=0).inline == {empty}


def test_beyond_what_may_be_inline_is_packed_and_the_smallest_ranges_come_first():
    parts = [[file(n, "1.sst", (n + 1) * KB)] for n in range(10)]
    made = plan(parts, inline_total=6 * KB)
    assert made.inline == {parts[0][0], parts[1][0], parts[2][0]}
    assert sum(len(pack.files) for pack in made.packs) == 7


def test_what_the_driver_keeps_goes_into_the_handles_whatever_its_size_and_whatever_the_base_has():
    parts = [[file(0, "1.sst", 2 << 20), file(0, "OPTIONS-7", 8 * KB)], [file(1, "1.sst", 10)]]
    bases = [[ref(parts[0][0], "shared/a")], []]
    made = plan(parts, bases, max_state_size=3 << 20)
    assert made.inline == {f for part in parts for f in part}
    assert not made.known
    assert made.packs == made.alone == ()


RANGES = [RangeSpec("counts", 0, 63), RangeSpec("counts", 64, 127)]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            [5, 101],
            f"operator=counts key_groups=64-127 size=101 maximum=100 setting={MAX_STATE_SIZE_KEY}",
        ),
        (
            [90, 80],
            "size=170 maximum=150 subtasks=2 largest: operator=counts key_groups=0-63 size=90",
        ),
    ],
)
def test_more_than_the_driver_keeps_is_refused_by_name_and_limit(sizes, said):
    limits = UploadLimits(max_state_size=100, inline_total=150)
    with pytest.raises(StateSizeExceeded, match=f"{said}; set state.checkpoint-storage to files"):
        require_room(RANGES, sizes, limits)
    require_room(RANGES, [100, 50], limits)
    require_room(RANGES, sizes, UploadLimits(inline_total=1))


SIZES = st.one_of(st.integers(0, 50), st.integers(0, 3000))
FILES = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 3)), max_size=8)


@given(
    st.lists(FILES, max_size=6),
    st.sets(st.integers(0, 50)),
    st.integers(0, 4000),
    st.integers(-1, 200),
    st.integers(0, 5000),
    st.integers(0, 2500),
    st.integers(1, 4000),
)
def test_every_file_has_one_place_and_no_limit_is_passed(
    shapes, known, inline_range, inline_file, inline_total, merge_below, pack
):
    parts = [
        [
            file(part, f"{n}.sst" if shared else f"{n}", size, f"{size} {content}")
            for n, (shared, size, content) in enumerate(shape)
        ]
        for part, shape in enumerate(shapes)
    ]
    bases = [
        [ref(f, f"shared/{part}-{n}") for n, f in enumerate(group) if n in known and f.shared]
        for part, group in enumerate(parts)
    ]
    limits = UploadLimits(inline_range, inline_file, inline_total, merge_below, pack)
    made = plan_upload(parts, bases, limits)
    packed = {f.content for p in made.packs for f in p.files}
    for one in (f for part in parts for f in part):
        places = [one in made.known, one in made.inline, one in made.alone]
        in_pack = one.content in packed and not any(places)
        assert sum([*places, in_pack]) == 1
    assert sum(f.size for f in made.inline) <= inline_total
    for p in made.packs:
        assert p.size <= pack or len(p.files) == 1
        assert all(f.shared is p.shared and 0 < f.size < merge_below for f in p.files)
    contents = [f.content for p in made.packs for f in p.files]
    assert len(set(contents)) == len(contents)


@pytest.mark.parametrize("pack", [1, 30 * KB, 60 * KB])
def test_the_order_of_ranges_is_kept_in_packs(pack):
    parts = [[file(n, "1.sst", 30 * KB), file(n, "2.sst", 30 * KB)] for n in range(5)]
    made = plan(parts, pack=pack)
    assert [f for p in made.packs for f in p.files] == [f for part in parts for f in part]


@pytest.mark.parametrize(("deltas", "size", "objects"), [(4, 100 * KB, 1), (8, 900 * KB, 4)])
def test_deltas_go_in_several_objects_side_by_side_once_they_are_large(deltas, size, objects):
    parts = [[file(n, f"{n}.delta", size)] for n in range(deltas)]
    made = plan_upload(parts, [[] for _ in parts], side_by_side(parts, UploadLimits()))
    assert len(made.packs) == objects
    assert sum(len(p.files) for p in made.packs) == deltas


def test_who_asked_for_small_objects_gets_no_larger_ones_for_deltas():
    parts = [[file(n, f"{n}.delta", 900 * KB)] for n in range(40)]
    assert side_by_side(parts, UploadLimits(pack=2000 * KB)).pack == 2000 * KB
