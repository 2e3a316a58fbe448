"""No bytes from a store, a disk or a socket do more than to be refused, in words."""

import itertools
import time

import pytest
from hypothesis import HealthCheck, given, settings

from .damage import damaged, rewritten
from .parsers import BY_BYTES, BY_DOCUMENT, TAKING, Documents, Parser

EXAMPLES = 60
AT_ONCE = 2_000
"""Examples of one parser after which soak goes to the next."""


def taken(parser, data, folder):
    """Whether the parser takes it; fails where it does anything but to take or to refuse it."""
    try:
        parser.read(data, folder)
    except parser.refuses:
        return False
    return True


def named(one):
    return (one.parser if isinstance(one, Documents) else one).name


def bytes_test(parser: Parser, folder, examples):
    @_many(examples)
    @given(damaged(parser.seeds))
    def each(data):
        if taken(parser, data, folder) and parser.proven:
            assert data in parser.seeds

    return each


def documents_test(found: Documents, folder, examples):
    @_many(examples)
    @given(rewritten(found.documents))
    def each(document):
        taken(found.parser, found.written(document), folder)

    return each


def _many(examples):
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, database=None, suppress_health_check=slow)


@pytest.mark.parametrize("parser", TAKING, ids=named)
def test_what_is_well_formed_is_taken(parser: Parser, tmp_path):
    assert [seed for seed in parser.seeds if not taken(parser, seed, tmp_path)] == []


@pytest.mark.parametrize("parser", BY_BYTES, ids=named)
def test_damaged_bytes_are_refused_in_words(parser: Parser, tmp_path):
    bytes_test(parser, tmp_path, EXAMPLES)()


@pytest.mark.parametrize("found", BY_DOCUMENT, ids=named)
def test_documents_of_a_hostile_hand_are_refused_in_words(found: Documents, tmp_path):
    documents_test(found, tmp_path, EXAMPLES)()


@pytest.mark.soak
def test_hours_of_damage_are_refused_in_words(soak_seconds, tmp_path):
    until = time.monotonic() + soak_seconds
    tests = [bytes_test(parser, tmp_path, AT_ONCE) for parser in BY_BYTES]
    tests += [documents_test(found, tmp_path, AT_ONCE) for found in BY_DOCUMENT]
    for each in itertools.cycle(tests):
        each()
        if time.monotonic() > until:
            break
