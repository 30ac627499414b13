"""Placeholders in paths."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.load import ConfigError
from shardbeam.configs.placeholders import (
    TemplateError,
    fill_template,
    parse_template,
    placeholders,
)
from tests.support.config_making import make_config
from tests.support.screens import check_screen

CONFIG = {"name": "d", "splits": {"train": {"format": "image-folder", "images": "x"}}}
VALUES = {"version": "1.0.0", "date": "20250131"}


def make(output: dict[str, Any], *overrides: str) -> None:
    make_config({**CONFIG, "output": output}, overrides=overrides, origin="d.yaml")


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("d", "d"),
        ("d/{version}", "d/1.0.0"),
        ("{date}{version}", "202501311.0.0"),
        ("{date}/{date}", "20250131/20250131"),
        ("{{date}}", "{date}"),
        ("{{{date}}}", "{20250131}"),
        ("}}{{", "}{"),
    ],
)
def test_filling(template: str, filled: str) -> None:
    assert fill_template(template, VALUES) == filled


@given(st.lists(st.tuples(st.text(), st.sampled_from(sorted(VALUES)))))
def test_taking_apart_is_the_reverse_of_putting_together(parts: list[tuple[str, str]]) -> None:
    template = "".join(
        text.replace("{", "{{").replace("}", "}}") + f"{{{name}}}" for text, name in parts
    )
    assert fill_template(template, VALUES) == "".join(text + VALUES[name] for text, name in parts)
    assert placeholders(template) == {name for _, name in parts}


@given(st.text(alphabet="{}ab"))
def test_any_braces_are_matched_or_refused(template: str) -> None:
    try:
        parts = list(parse_template(template))
    except TemplateError:
        return
    assert not any(set(part.text) & set("{}") for part in parts if part.is_placeholder)
    written = "".join(
        f"{{{part.text}}}" if part.is_placeholder else part.text * (1 + (part.text in "{}"))
        for part in parts
        if part.text or part.is_placeholder
    )
    assert written == template


REFUSED = [
    {"path": "d/{dat}"},
    {"path": "d/{}"},
    {"path": "d/{date"},
    {"path": "d}"},
    {"path": "d", "latest": "{date}"},
    {"path": "d", "latest": "l}"},
    {"path": "d\n", "latest": "l"},
]


def test_errors_name_key_and_fix() -> None:
    shown = ""
    for output in REFUSED:
        with pytest.raises(ConfigError) as caught:
            make(output)
        shown += f"{output}\n    {caught.value}\n"
    check_screen("placeholder_refusals", shown)


def test_an_override_is_to_blame_where_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^--set: output\.latest: expected no placeholder, got"):
        make({"path": "d/{date}"}, "output.latest='{date}'")


def test_what_may_stand_there() -> None:
    make({"path": "gs://b/{version}/{date}-{fingerprint}{{}}", "latest": "gs://b/latest"})
