from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardbeam.transforms.examples.encode import encode as wire
from shardbeam.transforms.examples.encode.encode import ExampleLayout
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.formats.base import Kind
from tests.support.example_builders import parse

PLAN = plan_features(
    EncoderSettings(
        kinds=frozenset({Kind.DETECTION, Kind.CLASSIFICATION}), constants={"mean": [0.5, 1.5]}
    )
)


def example_values(number: int) -> dict[str, list[object]]:
    """Returns `number` values of each key."""
    values: dict[str, object] = {"bytes": b"%d" % number, "int64": number, "float": number / 2}
    return {key: [values[spec.kind.value]] * number for key, spec in PLAN.defaults.items()}


def serialize(layout: ExampleLayout, number: int) -> bytes:
    return b"".join(layout.serialize(example_values(number), image=b"pixels"))


@pytest.mark.parametrize("message_bytes", [0, wire._MESSAGE_BYTES])
def test_an_example_holds_nothing_of_the_one_before(
    message_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MESSAGE_BYTES", message_bytes)
    layout = ExampleLayout(PLAN)
    for number in (3, 1, 0, 200, 2, 0, 3):
        data = serialize(layout, number)
        assert data == serialize(ExampleLayout(PLAN), number)
        constant = {"image/encoded": [b"pixels"], "mean": [0.5, 1.5]}
        assert parse(data) == example_values(number) | constant


def test_a_value_that_does_not_fit_leaves_nothing_behind() -> None:
    layout = ExampleLayout(PLAN)
    with pytest.raises(ValueError, match="out of range"):
        layout.serialize(example_values(3) | {"image/object/is_crowd": [2**63]}, image=b"")
    assert serialize(layout, 1) == serialize(ExampleLayout(PLAN), 1)


def test_threads_share_a_layout() -> None:
    layout = ExampleLayout(PLAN)
    numbers = [number % 7 for number in range(500)]
    with ThreadPoolExecutor(4) as executor:
        written = list(executor.map(lambda number: serialize(layout, number), numbers))
    assert written == [serialize(ExampleLayout(PLAN), number) for number in numbers]


def test_the_bytes_of_examples_are_freed() -> None:
    layout = ExampleLayout(PLAN)
    values = example_values(1)
    before = _resident_bytes()
    for number in range(100):
        layout.serialize(values | {"image/class/text": [b"%d" % number * 500_000]}, image=b"")
    assert _resident_bytes() - before < 30_000_000


def _resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
