"""`--set path.to.key=value`."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.load import ConfigError
from shardbeam.configs.schema import Config, FindingKind
from shardbeam.pipelines.config_file import load_config
from tests.support.config_making import make_config
from tests.support.screens import check_screen

BASE: dict[str, Any] = {
    "name": "d",
    "source": {"format": "coco", "images": "images/", "annotations": ["a.json"]},
    "fractions": {"train": 1},
    "output": {"path": "out"},
}

texts = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8)
FINDINGS = typing.get_args(FindingKind)
ratios = st.floats(min_value=0, max_value=1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.just("other"),
    "version": st.just("2.0.1"),
    "description": texts,
    "card.license": texts,
    "card.source": texts,
    "seed": st.integers(min_value=0, max_value=2**63 - 1),
    "source": st.just({"format": "image-folder", "images": "x"}),
    "fractions": st.just({"train": 0.25, "test": 0.75}),
    "exact": st.just(False),
    "stratify": st.just(False),
    "group_by": st.just(r"^([^/]+)/"),
    "exclude": st.none() | st.just("keys.txt"),
    "masks": st.sampled_from(["png", "none"]),
    "example_per": st.sampled_from(["image", "annotation"]),
    "source_id": st.sampled_from(["source", "number"]),
    "unannotated": st.sampled_from(["auto", "keep", "drop", "reject"]),
    "objects_lost": st.sampled_from(["reject", "drop", "keep"]),
    "objects": st.sampled_from(["some", "none"]),
    "image.verify": st.sampled_from(["decode", "header", "none"]),
    "image.damaged": st.sampled_from(["reject", "keep"]),
    "image.wrong_extension": st.sampled_from(["reject", "keep"]),
    "image.encoding": st.sampled_from(["jpeg", "png"]),
    "image.quality": st.integers(min_value=1, max_value=100),
    "image.max_side": st.none() | st.integers(min_value=1),
    "image.resize": st.none() | st.just({"width": 9, "height": 8, "fit": "crop"}),
    "image.orientation": st.sampled_from(["apply", "keep"]),
    "image.annotated_as": st.sampled_from(["auto", "upright", "stored"]),
    "image.crop_hashes": st.booleans(),
    "image.annotated_size": st.sampled_from(["scale", "ignore", "reject"]),
    "image.background": st.from_regex(r"\A#[0-9a-f]{6}\Z"),
    "image.max_pixels": st.integers(min_value=1),
    "image.max_decoded_mb": st.integers(min_value=1),
    "image.max_file_mb": st.integers(min_value=1),
    "panoptic.stuff": st.sampled_from(["zero", "index"]),
    "panoptic.bits": st.sampled_from([8, 16]),
    "labels.include": st.none() | st.lists(texts, min_size=1),
    "labels.exclude": st.lists(texts),
    "labels.merge": st.dictionaries(texts, st.just([])),
    "labels.ids": st.sampled_from(["source", "contiguous"]),
    "labels.first_id": st.none() | st.integers(min_value=0),
    "labels.min_side_px": st.floats(min_value=0, max_value=1e6),
    "labels.min_area_px": st.floats(min_value=0, max_value=1e6),
    "features.add": st.lists(texts),
    "features.rename": st.dictionaries(texts, texts),
    "features.drop": st.lists(texts),
    "features.constants": st.dictionaries(texts, texts | st.integers() | st.lists(ratios)),
    "output.path": st.just("d/{version}-{date}")
    | texts.filter(lambda text: not set(text) & set("{}")),
    "output.latest": st.none() | st.just("latest"),
    "output.shard_size_mb": st.floats(min_value=1e-6, max_value=1e6),
    "output.num_shards": st.none() | st.integers(min_value=1) | st.just({"train": 2}),
    "output.file_name": st.none() | st.just("{split}.tfrecords"),
    "output.container": st.sampled_from(["tfrecord", "array_record"]),
    "rejects.max_ratio": ratios,
    "duplicates.find": st.sampled_from(["all", "none"]),
    "duplicates.near": st.integers(min_value=0, max_value=3),
    "duplicates.leaks": st.sampled_from(["warn", "refuse"]),
    "duplicates.contradictions": st.sampled_from(["warn", "refuse"]),
    "duplicates.near_contradictions": st.sampled_from(["warn", "refuse"]),
    **dict.fromkeys(
        [
            *("expect.min_images", "expect.min_objects"),
            *("expect.min_images_per_class", "expect.min_objects_per_class"),
        ],
        st.none() | st.integers(min_value=1) | st.just({"train": 2}),
    ),
    "expect.image_width": st.none() | st.just([1, 9]),
    "expect.image_height": st.none() | st.just([3, 3]),
    "expect.max_unannotated": st.none() | ratios,
    "expect.max_crowds": st.none() | ratios,
    "expect.max_corrections": st.none() | ratios,
    "expect.max_findings": st.none()
    | st.dictionaries(st.sampled_from(FINDINGS), st.integers(0, 2**40)),
    "findings.ignore": st.lists(st.sampled_from(FINDINGS)),
    "limit": st.none() | st.integers(1, 2**40),
}


def _leaves(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def test_every_key_is_tried_below() -> None:
    # `splits` excludes `source`, and is tried by itself.
    assert set(VALUES) | {"splits"} == set(_leaves(Config))


@given(data=st.data(), key=st.sampled_from(sorted(VALUES)))
def test_an_override_is_as_good_as_the_key_in_the_file(data: st.DataObject, key: str) -> None:
    value = data.draw(VALUES[key])
    raw = json.loads(json.dumps(BASE))
    *parents, last = key.split(".")
    section = raw
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    override = f"{key}={json.dumps(value, ensure_ascii=False)}"

    config = make_config(BASE, overrides=[override], origin="d.yaml")

    assert config == make_config(raw, origin="d.yaml")
    written = msgspec.to_builtins(config)
    for parent in parents:
        written = written[parent]
    if key != "source":
        assert written[last] == value


def test_one_split_of_two_that_share_an_anchor(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        "name: d\n"
        "splits: {train: &same {format: image-folder, images: x}, test: *same}\n"
        "output: {path: out}\n"
    )
    config = load_config(path, overrides=["splits.test.images=y"])
    assert isinstance(config.splits, dict)
    sources = [config.splits["train"], config.splits["test"]]
    assert [getattr(source, "images", None) for source in sources] == ["x", "y"]


def test_the_last_override_wins_and_the_raw_data_stays() -> None:
    raw = json.loads(json.dumps(BASE))
    overrides = ["image={quality: 50}", "image.max_side=9", "image.quality=60"]
    config = make_config(raw, overrides=overrides, origin="")
    assert (config.image.quality, config.image.max_side) == (60, 9)
    assert raw == BASE


REFUSED = [
    "image.quality",
    "=3",
    "image..quality=3",
    "image.qualty=3",
    "image.quality=high",
    "image=3",
    "name.first=x",
    "source.annotations.0=x",
    "description=a: b: c",
    "image.background=#ffffff",
    "fractions.test=0.5",
    "group_by='('",
]


def test_refusals_name_the_flag() -> None:
    shown = ""
    for override in REFUSED:
        with pytest.raises(ConfigError) as caught:
            make_config(BASE, overrides=[override], origin="d.yaml")
        shown += f"{override}\n    {caught.value}\n"
    check_screen("override_refusals", shown)


def test_a_wrong_file_is_not_blamed_on_an_override() -> None:
    with pytest.raises(ConfigError, match=r"^d\.yaml: name: "):
        make_config({**BASE, "name": "-"}, overrides=["image.quality=3"], origin="d.yaml")
