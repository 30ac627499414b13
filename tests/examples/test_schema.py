from __future__ import annotations

import datetime
import math
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from shardbeam.transforms.formats.base import Kind
from tests.support.screens import check_screen

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


def test_default_keys() -> None:
    kinds = {Kind.CLASSIFICATION: CLASSIFICATION_KEYS, Kind.DETECTION: DETECTION_KEYS}
    assert make_schema(kinds=[]).keys() == IMAGE_KEYS
    assert make_schema(kinds=[*kinds]).keys() == IMAGE_KEYS.union(*kinds.values())
    for kind, keys in kinds.items():
        assert make_schema(kinds=[kind]).keys() == IMAGE_KEYS | keys


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


REFUSED: list[dict[str, Any]] = [
    {"rename": {"image/encode": "x"}},
    {"drop": ["image/object/bbox/xmn"]},
    {"drop": ["zzz"], "kinds": []},
    {"rename": {"image/width": "image/height"}},
    {"rename": {"image/width": "x", "image/height": "x"}},
    {"constants": {"image/width": 3}},
    {"rename": {"image/width": "w"}, "drop": ["image/width"]},
    {"drop": sorted(IMAGE_KEYS), "kinds": []},
    {"rename": {"image/width": ""}},
    {"constants": {"a\nb": 1}},
    {"constants": {"\ud800": 1}},
    {"constants": {"é" * 101: 1}},
    {"constants": {"x": []}},
    {"constants": {"x": [1, 2.0]}},
    {"constants": {"x": True}},
    {"constants": {"x": [datetime.date(2026, 1, 2)]}},
    {"constants": {"x": 2**63}},
    {"constants": {"x": -(2**63) - 1}},
    {"constants": {"x": math.nan}},
    {"constants": {"x": [1.0, 1e39]}},
    {"constants": {"x": "\ud800"}},
]


def test_refused() -> None:
    shown = ""
    for settings in REFUSED:
        with pytest.raises(ValueError, match=r"^features\.") as caught:
            make_schema(**settings)
        shown += f"{settings}\n    {caught.value}\n"
    check_screen("schema_refusals", shown)


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
