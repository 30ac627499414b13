from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.formats.parsing import json_array
from shardbeam.transforms.formats.parsing.json_array import cut_array
from tests.support.coco_reading import annotation, document, image, read_coco


class Entry(msgspec.Struct):
    n: int


def cut(data: bytes) -> tuple[Any, list[Any]] | None:
    found = cut_array(data, key="a", entry_type=Entry)
    if found is None:
        return None
    rest, entries = found
    return json.loads(rest.data), [json.loads(entries[index]) for index in range(len(entries))]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": []}',
        '{"a": [{"n": 1}]}',
        r'{"b\"a": [{"n": 3}], "a": [{"n": 1}]}',
        '{"b": 1, "a" :\n[ {"n": 1} , 2 ] , "c": [{"n": 3}, {"n": 4}]}',
        '{"a": [{"n": 1, "in": [{"m": 1}, {"m": 2}]}, {"in": [{"m": 3},{"m": 4}], "n": 2}]}',
    ],
)
def test_the_array_and_the_rest(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(text)
    for block_bytes in range(1, len(text)):
        monkeypatch.setattr(json_array, "BLOCK_BYTES", block_bytes)

        assert cut(text.encode()) == ({**whole, "a": []}, whole["a"])


@pytest.mark.parametrize(
    "text",
    [
        '{"b": []}',
        '{"a": null}',
        '{"a": {"n": 1}}',
        '{"b": {"a": []}, "a": [{"n": 1}]}',
        r'{"\u0061": [], "b\"a": [{"n": 1}]}',
        '[{"a": [{"n": 1}]}]',
        '{"a": [{"n": 1}',
        '{"a": [{"n": 1}, }',
        '{"a": [{"n": 1}, {"n": 1',
        '{"b": nul, "a": [{"n": 1}]}',
    ],
)
def test_anything_else_is_left_to_who_decodes_it_whole(text: str) -> None:
    assert cut(text.encode()) is None


_VALUES = st.recursive(
    st.integers(0, 9) | st.sampled_from(["},{", '}, {"n":', "é", '"\\', '], "a": [{']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abn"), inner),
    max_leaves=8,
)


@given(
    whole=st.dictionaries(st.sampled_from("bcd"), _VALUES),
    entries=st.lists(st.fixed_dictionaries({"n": st.integers(), "in": _VALUES})),
    is_first=st.booleans(),
    indent=st.sampled_from([None, 1]),
    block_bytes=st.integers(1, 200),
    missing=st.integers(0, 3),
)
def test_what_is_cut_out_is_what_was_there(
    whole: dict[str, Any],
    entries: list[Any],
    is_first: bool,
    indent: int | None,
    block_bytes: int,
    missing: int,
) -> None:
    whole = {"a": entries, **whole} if is_first else {**whole, "a": entries}
    data = json.dumps(whole, indent=indent, ensure_ascii=False).encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", block_bytes)
        if missing:
            with pytest.raises(json.JSONDecodeError):
                # None leaves the file to the reader of whole files.
                cut(data[:-missing]) or json.loads(data[:-missing])
        else:
            assert cut(data) in (None, ({**whole, "a": []}, entries))


@pytest.mark.parametrize("segments", [[], [{"id": k, "category_id": 18} for k in range(40)]])
def test_no_decoder_of_a_coco_file_gets_more_than_a_block(
    segments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []

    class Recording:
        def decode(self, data: bytes | memoryview) -> list[msgspec.Raw]:
            lengths.append(len(data))
            return JsonDecoder(list[msgspec.Raw]).decode(data)

    content = document(
        images=[image(id=k, file_name=f"{k}.jpg") for k in range(20)],
        annotations=[
            annotation(id=n, image_id=n // 10, extra=segments, bbox=[n, 0, 1, 1])
            for n in range(200)
        ],
    )
    expected = read_coco(content)
    monkeypatch.setattr(json_array, "_array_decoder", Recording())
    monkeypatch.setattr(json_array, "BLOCK_BYTES", 10_000)

    assert read_coco(content) == expected
    assert len(lengths) > len(json.dumps(content)) / 15_000 > 2
    assert max(lengths) < 15_000
