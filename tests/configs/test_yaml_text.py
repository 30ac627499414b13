"""YAML for configs."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.yaml_text import YamlError, parse_yaml
from tests.support.screens import check_screen

# Characters that YAML allows in a document as they are. PyYAML writes `1e3` without quotes, for
# it is no number in YAML 1.1.
texts = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])).filter(
    lambda text: not re.fullmatch(r"[-+]?[0-9]+[eE][-+]?[0-9]+", text)
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=10,
)


@given(values)
def test_json_means_what_it_says(value: object) -> None:
    assert parse_yaml(json.dumps(value, ensure_ascii=False)) == value


@given(values)
def test_what_pyyaml_writes_is_read_back(value: object) -> None:
    assert parse_yaml(yaml.safe_dump(value, allow_unicode=True)) == value


@given(st.text())
def test_any_text_is_parsed_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        parse_yaml(text)
    except YamlError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("On", "On"),
        ("2024-05-01", "2024-05-01"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("1.0.0", "1.0.0"),
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-7", -7),
        ("~", None),
        ("", None),
        ("true", True),
        ("'true'", "true"),
        ("'1'", "1"),
    ],
)
def test_plain_scalars_are_what_they_look_like(text: str, value: object) -> None:
    parsed = parse_yaml(text)
    assert (type(parsed), parsed) == (type(value), value)


def test_keys_that_are_whole_numbers_are_texts() -> None:
    assert parse_yaml("{0: a, 128: b, 01: c}") == {"0": "a", "128": "b", "01": "c"}


def test_merged_keys_may_be_overridden() -> None:
    text = "base: &base {p: 1, q: 2}\nother: {<<: *base, q: 3}"
    assert parse_yaml(text)["other"] == {"p": 1, "q": 3}


REFUSED = [
    "a: 1\nb: 2\na: 3",
    "a: {b: 1, 'b': 2}",
    "1.5: x",
    "-1: x",
    "{1: x, '1': y}",
    "[a]: x",
    "a: b: c",
    "a: [1",
    "a:\n\tb: 1",
    "a: 1 # one\n  \tb: 2",
    "{\n\t'a': 1}",
    "a: 1\nb: [" + "9" * 5000 + "]",
    "--- a\n--- b",
    "!!python/object/apply:os.getcwd []",
    "&a [*a]",
    "a: \0",
    "[" * 1000,
]


def test_refusals_name_the_place() -> None:
    shown = ""
    for text in REFUSED:
        with pytest.raises(YamlError) as caught:
            parse_yaml(text)
        shown += f"{text[:80]!r}\n    {caught.value}\n"
    check_screen("yaml_refusals", shown)


def doubled(times: int, *, reference: str) -> str:
    """Anchors that each hold the one before twice."""
    lines = ["a0: &a0 {k0: 1}"]
    for number in range(1, times + 1):
        twice = reference.format(f"*a{number - 1}, *a{number - 1}")
        lines.append(f"a{number}: &a{number} {{k{number}: 1, {twice}}}")
    return "\n".join(lines)


@pytest.mark.parametrize("reference", ["x: [{}]", "<<: [{}]"], ids=["aliases", "merge keys"])
# 60 doublings make more values than any machine could go through.
@pytest.mark.parametrize("times", [16, 60])
def test_values_that_aliases_repeat_are_bounded(reference: str, times: int) -> None:
    assert parse_yaml(doubled(8, reference=reference))["a8"]["k8"] == 1
    with pytest.raises(YamlError, match=r"^line 1, column 1: more than 100,000 values, counted"):
        parse_yaml(doubled(times, reference=reference))
