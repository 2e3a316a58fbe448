import random

from hypothesis import given
from hypothesis import strategies as st

from moorage.engine.placement import LiveExecutor, assign

PARALLELISM = st.integers(1, 40)
EQUAL = st.sets(st.integers(0, 30), min_size=1, max_size=8).map(
    lambda ids: [LiveExecutor(str(i), "h") for i in sorted(ids)]
)
MIXED = st.dictionaries(st.integers(0, 30), st.integers(1, 6), min_size=1, max_size=8).map(
    lambda cores: [LiveExecutor(str(i), "h", n) for i, n in sorted(cores.items())]
)


def loads(owners, live):
    return [sum(owner == executor.id for owner in owners.values()) for executor in live]


def moves(before, after):
    return {task for task, owner in after.items() if before.get(task) != owner}


def test_no_executor_means_no_assignment():
    assert assign({0: "1"}, [], 4) == {}


def test_six_subtasks_on_three_executors_are_two_each():
    live = [LiveExecutor(str(i), "h") for i in range(3)]
    assert loads(assign({}, live, 6), live) == [2, 2, 2]


def test_cores_weigh():
    live = [LiveExecutor("0", "h", 4), LiveExecutor("1", "h", 2)]
    assert loads(assign({}, live, 6), live) == [4, 2]


def test_executor_ids_sort_as_numbers():
    live = [LiveExecutor("10", "h"), LiveExecutor("9", "h")]
    assert assign({}, live, 1) == {0: "9"}


def test_replacing_a_dead_executor_moves_only_its_subtasks():
    live = [LiveExecutor(str(i), "h") for i in range(3)]
    before = assign({}, live, 6)
    after = assign(before, [live[0], live[2], LiveExecutor("3", "h")], 6)
    assert moves(before, after) == {task for task, owner in before.items() if owner == "1"}


@given(EQUAL, PARALLELISM)
def test_equal_executors_differ_by_at_most_one(live, parallelism):
    counts = loads(assign({}, live, parallelism), live)
    assert sum(counts) == parallelism
    assert max(counts) - min(counts) <= 1


@given(MIXED, PARALLELISM, st.randoms(use_true_random=False))
def test_the_order_of_executors_does_not_matter(live, parallelism, rng: random.Random):
    shuffled = list(live)
    rng.shuffle(shuffled)
    assert assign({}, shuffled, parallelism) == assign({}, live, parallelism)


@given(MIXED, PARALLELISM)
def test_assigning_again_moves_nothing(live, parallelism):
    owners = assign({}, live, parallelism)
    assert assign(owners, live, parallelism) == owners


@given(MIXED, PARALLELISM, st.data())
def test_when_an_executor_leaves_only_its_subtasks_move(live, parallelism, data):
    before = assign({}, live, parallelism)
    gone = data.draw(st.sampled_from(live))
    after = assign(before, [executor for executor in live if executor != gone], parallelism)
    assert moves(before, after) <= {task for task, owner in before.items() if owner == gone.id}


@given(MIXED, PARALLELISM, st.integers(1, 6))
def test_when_an_executor_joins_subtasks_move_only_to_it(live, parallelism, cores):
    before = assign({}, live, parallelism)
    new = LiveExecutor("99", "h", cores)
    after = assign(before, [*live, new], parallelism)
    assert {after[task] for task in moves(before, after)} <= {new.id}


@given(EQUAL, PARALLELISM, st.data())
def test_from_any_assignment_no_more_move_than_balance_needs(live, parallelism, data):
    ids = [*(executor.id for executor in live), "gone"]
    before = data.draw(st.fixed_dictionaries({t: st.sampled_from(ids) for t in range(parallelism)}))
    held = sorted(loads(before, live), reverse=True)
    low, extra = divmod(parallelism, len(live))
    kept = sum(min(count, low + (i < extra)) for i, count in enumerate(held))
    assert len(moves(before, assign(before, live, parallelism))) == parallelism - kept


@given(PARALLELISM, PARALLELISM)
def test_a_rescale_keeps_the_subtasks_it_can(old, new):
    live = [LiveExecutor(str(i), "h") for i in range(3)]
    before = assign({}, live, old)
    after = assign(before, live, new)
    assert sorted(after) == list(range(new))
