"""A short, seeded part of `make fuzz`."""

from __future__ import annotations

import pickle
import random

import pytest

from tests.fuzz import run
from tests.fuzz.run import FailedError, Task, find_targets, fuzz, run_task

TARGETS = find_targets()
INPUTS = 100


@pytest.mark.parametrize("target", TARGETS)
def test_every_outcome_is_a_value_or_a_typed_error(target: str) -> None:
    for _ in fuzz(TARGETS[target], target=target, seed="test", first=0, inputs=INPUTS):
        pass


def test_an_input_that_fails_can_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fuzz_luck(random: random.Random) -> str:
        if random.random() < 0.05:
            raise ZeroDivisionError("unlucky")
        return "lucky"

    monkeypatch.setattr(run, "find_targets", lambda: {"luck": fuzz_luck})
    with pytest.raises(FailedError) as raised:
        run_task(Task("luck", "8", first=100, inputs=500))

    error = pickle.loads(pickle.dumps(raised.value))
    assert "unlucky" in error.failure
    lucky = error.number - 100
    assert lucky > 0
    assert run_task(Task("luck", "8", first=100, inputs=lucky)) == {"lucky": lucky}
    again = Task("luck", "8", first=error.number, inputs=1)
    assert again.command.endswith(f"luck --seed 8 --first {error.number} --inputs 1")
    with pytest.raises(FailedError):
        run_task(again)
