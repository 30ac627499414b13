from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from shardbeam.transforms.formats.base import Kind

IMAGE_KEYS = {
    "image/encoded",
    "image/filename",
    "image/format",
    "image/height",
    "image/key/sha256",
    "image/source_id",
    "image/width",
}
CLASSIFICATION_KEYS = {"image/class/label", "image/class/text"}
DETECTION_KEYS = {
    "image/object/area",
    "image/object/bbox/xmax",
    "image/object/bbox/xmin",
    "image/object/bbox/ymax",
    "image/object/bbox/ymin",
    "image/object/class/label",
    "image/object/class/text",
    "image/object/is_crowd",
}


def make_schema(
    *,
    kinds: Collection[Kind] = (Kind.DETECTION,),
    **settings: Any,  # noqa: ANN401  # Those of EncoderSettings.
) -> dict[str, FeatureSpec]:
    schema = plan_features(EncoderSettings(kinds=frozenset(kinds), **settings)).schema()
    keys = [spec.key for spec in schema]
    assert keys == sorted(keys)
    return {spec.key: spec for spec in schema}


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        ([], IMAGE_KEYS),
        ([Kind.CLASSIFICATION], IMAGE_KEYS | CLASSIFICATION_KEYS),
        ([Kind.DETECTION], IMAGE_KEYS | DETECTION_KEYS),
        (
            [Kind.DETECTION, Kind.CLASSIFICATION],
            IMAGE_KEYS | CLASSIFICATION_KEYS | DETECTION_KEYS,
        ),
    ],
)
def test_default_keys(kinds: list[Kind], keys: set[str]) -> None:
    assert make_schema(kinds=kinds).keys() == keys


def test_rename_drop_and_constants() -> None:
    schema = make_schema(
        rename={
            "image/encoded": "train/image",
            "image/width": "image/height",
            "image/height": "image/width",
            "image/filename": "image/format",
        },
        drop=[*DETECTION_KEYS, "image/format"],
        constants={"image/colorspace": "RGB", "channels": 3, "mean": [0.5, 1.0]},
    )
    assert schema == {
        "train/image": FeatureSpec("train/image", FeatureKind.BYTES, False, FeatureRole.IMAGE),
        "image/colorspace": FeatureSpec(
            "image/colorspace", FeatureKind.BYTES, False, FeatureRole.TEXT
        ),
        "channels": FeatureSpec("channels", FeatureKind.INT64, False),
        "mean": FeatureSpec("mean", FeatureKind.FLOAT, True),
        "image/format": FeatureSpec("image/format", FeatureKind.BYTES, False, FeatureRole.TEXT),
        "image/height": FeatureSpec("image/height", FeatureKind.INT64, False),
        "image/width": FeatureSpec("image/width", FeatureKind.INT64, False),
        "image/source_id": FeatureSpec(
            "image/source_id", FeatureKind.BYTES, False, FeatureRole.TEXT
        ),
        "image/key/sha256": FeatureSpec(
            "image/key/sha256", FeatureKind.BYTES, False, FeatureRole.TEXT
        ),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rename": {"image/encode": "x"}},
            "features.rename: unknown key 'image/encode'; did you mean 'image/encoded'?",
        ),
        (
            {"drop": ["image/object/bbox/xmn"]},
            "features.drop: unknown key 'image/object/bbox/xmn'; "
            "did you mean 'image/object/bbox/xmin'?",
        ),
        (
            {"drop": ["zzz"], "kinds": []},
            "features.drop: unknown key 'zzz'; known: image/encoded, image/format, image/height, "
            "image/width, image/filename, image/source_id, image/key/sha256, image/depth",
        ),
        (
            {"rename": {"image/width": "image/height"}},
            "features.rename: two features would have the key 'image/height'",
        ),
        (
            {"rename": {"image/width": "x", "image/height": "x"}},
            "features.rename: two features would have the key 'x'",
        ),
        (
            {"constants": {"image/width": 3}},
            "features.constants: two features would have the key 'image/width'",
        ),
        (
            {"rename": {"image/width": "w"}, "drop": ["image/width"]},
            "features.rename: 'image/width' is also in features.drop",
        ),
        ({"drop": sorted(IMAGE_KEYS), "kinds": []}, "features.drop: no key is left to be written"),
        (
            {"rename": {"image/width": ""}},
            "features.rename: a key must be printable text, got ''",
        ),
        (
            {"constants": {"a\nb": 1}},
            "features.constants: a key must be printable text, got 'a\\nb'",
        ),
        (
            {"constants": {"\ud800": 1}},
            "features.constants: a key must be printable text, got '\\ud800'",
        ),
        (
            {"constants": {"é" * 101: 1}},
            f"features.constants: a key may have 200 bytes, got '{'é' * 40}'...",
        ),
        (
            {"constants": {"x": []}},
            "features.constants.x: an empty list has no kind; give it a value or leave it out",
        ),
        (
            {"constants": {"x": [1, 2.0]}},
            "features.constants.x: expected values of one type, got float and int",
        ),
        (
            {"constants": {"x": True}},
            "features.constants.x: expected a string, an integer, a float, or a list of one of "
            "these, got True; quote it if it is meant as a string",
        ),
        (
            {"constants": {"x": [datetime.date(2026, 1, 2)]}},
            "features.constants.x: expected a string, an integer, a float, or a list of one of "
            "these, got datetime.date(2026, 1, 2); quote it if it is meant as a string",
        ),
        ({"constants": {"x": 2**63}}, f"features.constants.x: {2**63} does not fit into 64 bits"),
        (
            {"constants": {"x": -(2**63) - 1}},
            f"features.constants.x: {-(2**63) - 1} does not fit into 64 bits",
        ),
        (
            {"constants": {"x": math.nan}},
            "features.constants.x: nan is not a finite 32-bit float",
        ),
        (
            {"constants": {"x": [1.0, 1e39]}},
            "features.constants.x: 1e+39 is not a finite 32-bit float",
        ),
        ({"constants": {"x": "\ud800"}}, "features.constants.x: not valid Unicode: '\\ud800'"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        make_schema(**settings)


settings_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)
some_keys = st.sampled_from(sorted(IMAGE_KEYS)) | st.text(max_size=5)


@given(
    rename=st.dictionaries(some_keys, some_keys, max_size=3),
    drop=st.lists(some_keys, max_size=3),
    constants=st.dictionaries(some_keys, settings_values, max_size=3),
)
def test_any_settings_give_a_schema_or_one_line(
    rename: dict[str, str], drop: list[str], constants: dict[str, Any]
) -> None:
    try:
        schema = make_schema(rename=rename, drop=drop, constants=constants)
    except ValueError as error:
        message = str(error)
        schema = {}
    else:
        message = ""
        defaults = len(IMAGE_KEYS) + len(DETECTION_KEYS)
        assert len(schema) == defaults - len(set(drop)) + len(constants)
    assert bool(schema) != message.startswith("features.")
    assert "\n" not in message
