"""A short, seeded slice of what `make fuzz` does for long."""

from __future__ import annotations

import pytest

from tests.fuzz.run import find_targets, fuzz

TARGETS = find_targets()
INPUTS = 300


@pytest.mark.parametrize("target", TARGETS)
def test_every_outcome_is_a_value_or_a_typed_error(target: str) -> None:
    for _ in fuzz(TARGETS[target], target=target, seed="test", first=0, inputs=INPUTS):
        pass
