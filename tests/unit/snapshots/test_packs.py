"""When what is left of a pack is written again."""

import pytest

from moorage_state.snapshots import FileRef, worn_packs


def files(*slices):
    return [
        FileRef(name=f"{n}.sst", key=key, offset=at, size=size, sha256="0" * 64, shared=shared)
        for n, (key, at, size, shared) in enumerate(slices)
    ]


def pack(number, size):
    return f"shared/pack-{'a' * 32}-{number}-{size}"


@pytest.mark.parametrize(("used", "is_worn"), [(499, True), (500, False), (1000, False)])
def test_a_pack_is_worn_when_less_than_half_is_referenced(used, is_worn):
    assert worn_packs(files((pack(0, 1000), 0, used, True))) == (
        {pack(0, 1000)} if is_worn else set()
    )


def test_references_of_all_servers_count_together_and_equal_slices_once():
    key = pack(0, 1000)
    one, other = files((key, 0, 300, True)), files((key, 300, 300, True))
    assert worn_packs(one) == worn_packs([*one, *one]) == {key}
    assert worn_packs([*one, *other]) == set()


def test_objects_of_one_file_and_private_packs_are_not_worn():
    private = f"chk-1/f1r0/pack-{'a' * 32}-0-1000"
    assert worn_packs(files(("shared/b-1.sst-0", 0, 1, True), (private, 0, 1, False))) == set()


def test_many_small_packs_are_gathered_and_large_ones_stay():
    small = files(*((pack(n, 1000), 0, 1000, True) for n in range(33)))
    large = files((pack(99, 2 << 20), 0, 2 << 20, True))
    assert worn_packs([*small[:32], *large]) == set()
    assert worn_packs([*small, *large]) == {pack(n, 1000) for n in range(33)}
