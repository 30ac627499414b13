"""A short, seeded part of `make fuzz`."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys

import pytest

from tests.fuzz import run
from tests.fuzz.run import FailedError, Task, find_targets, fuzz, run_task

TARGETS = find_targets()
# These may end their process.
PARQUET = [target for target in TARGETS if target.startswith("parquet_")]
INPUTS = 100


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - set(PARQUET)))
def test_every_outcome_is_a_value_or_a_typed_error(target: str) -> None:
    for _ in fuzz(TARGETS[target], target=target, seed="test", first=0, inputs=INPUTS):
        pass


@pytest.mark.parametrize("inputs", [INPUTS // 2, pytest.param(1_000, marks=pytest.mark.slow)])
def test_no_flipped_bit_in_a_parquet_file_ends_the_process_or_is_believed(inputs: int) -> None:
    words = [*PARQUET, "--inputs", str(inputs), "--seed", "flips", "--processes", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(f"{target}: {inputs:,} inputs" in done.stdout for target in PARQUET)


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
