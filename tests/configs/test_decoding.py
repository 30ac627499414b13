"""Types are decoded for the first time in several threads at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from shardbeam.configs.decoding import JsonDecoder, MsgpackDecoder, convert_value

# msgspec alone crashes here, in nearly every run.
_FIRST_USES = """
import sys, threading
from typing import Optional
import msgspec
from shardbeam.configs.decoding import JsonDecoder, MsgpackDecoder, convert_value

sys.setswitchinterval(1e-6)
inner, outer = [], []
for number in range(60):
    fields = [(f"field_{index}", Optional[int], None) for index in range(20)]
    inner.append(msgspec.defstruct(f"Inner{number}", fields))
    parts = [(f"part_{index}", Optional[list[inner[-1]]], None) for index in range(5)]
    outer.append(msgspec.defstruct(f"Outer{number}", parts))
barrier = threading.Barrier(6)
failures = []

def use(turn):
    barrier.wait()
    for number in range(60):
        decode = [
            lambda kind: JsonDecoder(kind).decode(b'{"part_0": [{"field_19": 7}]}'),
            lambda kind: MsgpackDecoder(kind).decode(
                msgspec.msgpack.encode({"part_0": [{"field_19": 7}]})
            ),
            lambda kind: convert_value({"part_0": [{"field_19": 7}]}, kind),
        ][(turn + number) % 3]
        try:
            if decode(outer[number]).part_0 != [inner[number](field_19=7)]:
                failures.append(number)
        except Exception as error:
            failures.append(repr(error))

threads = [threading.Thread(target=use, args=[turn]) for turn in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
"""


@pytest.mark.parametrize("turn", range(4))
def test_threads_may_meet_a_type_at_the_same_time(turn: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_USES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


class _Point(msgspec.Struct):
    x: int
    y: float = 0.5


def test_values_have_the_type() -> None:
    assert JsonDecoder(_Point).decode(b'{"x": 3}') == _Point(3)
    assert JsonDecoder(_Point, strict=False).decode(b'{"x": "3"}') == _Point(3)
    assert MsgpackDecoder(_Point).decode(msgspec.msgpack.encode({"x": 3})) == _Point(3)
    assert convert_value({"x": 3, "y": 1}, _Point) == _Point(3, 1.0)
    assert convert_value({"x": "3"}, _Point, strict=False) == _Point(3)


def test_without_a_type_anything_is_decoded() -> None:
    assert JsonDecoder().decode(b'[1, {"a": null}]') == [1, {"a": None}]
    assert MsgpackDecoder().decode(b"\x93\x01\x02\x03") == [1, 2, 3]


@pytest.mark.parametrize(
    "decode",
    [
        JsonDecoder(_Point).decode,
        MsgpackDecoder(_Point).decode,
        lambda _: convert_value({"x": "3"}, _Point),
    ],
)
def test_other_values_are_refused(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(msgspec.DecodeError):
        decode(b'{"x": "3"}')
