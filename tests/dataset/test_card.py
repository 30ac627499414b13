from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.card import card_files, escape_markdown
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.file_names import CARD, CROISSANT
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_dataset, make_files, make_shard_result

IMAGE = FeatureSpec("image/encoded", FeatureKind.BYTES, False, FeatureRole.IMAGE)
LABELS = FeatureSpec("image/class/label", FeatureKind.INT64, True, FeatureRole.LABEL)
MASKS = FeatureSpec("image/object/mask", FeatureKind.BYTES, True, FeatureRole.MASK)
MAP = FeatureSpec("image/segmentation/class/encoded", FeatureKind.BYTES, False, FeatureRole.MASK)
AREA = FeatureSpec("image/object/area", FeatureKind.FLOAT, True)


def header(card: bytes) -> Any:  # noqa: ANN401  # Any YAML.
    """The header as the Hub's library finds it."""
    found = re.match(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))", card.decode())
    assert found is not None
    return yaml.safe_load(found[2])


def make_card(
    features: Sequence[FeatureSpec] = (), *, ids: dict[str, int] | None = None, **texts: str
) -> dict[str, bytes]:
    dataset = msgspec.structs.replace(make_dataset(features=features), **texts)
    return card_files(
        dataset, shards=[], label_map=LabelMap(ids=ids or {}, names={}), statistics={}
    )


def files_of(
    container: str, *features: FeatureSpec, ids: dict[str, int] | None = None
) -> dict[str, bytes]:
    suffix = {"hf_parquet": ".parquet", "webdataset": ".tar"}.get(container, "")
    naming = FileNaming(prefix="toy-{split}" if suffix else "toy-{split}.tfrecord", suffix=suffix)
    dataset = msgspec.structs.replace(
        make_dataset(features=features, naming=naming),
        container=container,
        license="cc-by-4.0",
        source="https://example.org/toy",
    )
    shard = make_shard_result(describe_data("x", b"123"))
    label_map = make_label_map(ids or {})
    return make_files(dataset=dataset, shards=[shard], label_map=label_map)


def test_the_header_of_tfrecord_files_names_nothing_that_can_be_loaded() -> None:
    found = header(files_of("tfrecord", IMAGE)[CARD])
    assert found == {
        "pretty_name": "toy",
        "license": "cc-by-4.0",
        "configs": [{"config_name": "default", "data_files": "toy-*.tfrecord-*-of-*"}],
    }


def test_the_header_of_parquet_files_has_features_and_a_path_a_split() -> None:
    found = header(files_of("hf_parquet", IMAGE, LABELS, MASKS, AREA, ids={"a": 1, "yes": 3})[CARD])
    (config,) = found["configs"]
    assert config["data_files"] == [{"split": "train", "path": "toy-train-*-of-*.parquet"}]
    names = {"0": "unused 0", "1": "a", "2": "unused 2", "3": "yes"}
    assert found["dataset_info"]["features"] == [
        {"name": "image/encoded", "dtype": "image"},
        {"name": "image/class/label", "sequence": {"class_label": {"names": names}}},
        {"name": "image/object/mask", "sequence": "image"},
        {"name": "image/object/area", "sequence": "float32"},
    ]


def test_the_header_of_tars_has_a_column_for_each_file_of_a_sample() -> None:
    found = header(files_of("webdataset", AREA, LABELS, MASKS, MAP)[CARD])
    assert found["dataset_info"]["features"] == [
        {"name": "image.segmentation.class.encoded.png", "dtype": "image"},
        {
            "name": "json",
            "struct": [
                {"name": "image/object/area", "sequence": "float32"},
                {"name": "image/class/label", "sequence": "int64"},
                {"name": "image/object/mask", "sequence": "string"},
            ],
        },
        {"name": "__key__", "dtype": "string"},
        {"name": "__url__", "dtype": "string"},
    ]


HOSTILE = (
    "<script>alert(1)</script>",
    "[a](https://evil.example)",
    "![a](https://evil.example/a.png)",
    "https://evil.example",
    "www.evil.example",
    "a | b",
    "`a` ``b``",
    "`",
    "a\n---\n\n# b",
    "a\r\n---\r\nb: !!python/object/apply:os.system [ls]",
    "- a\n1. b\n> c\n# d\n===\n$x$",
    "&lt;b&gt;",
    "\\",
    "\u2028---\u2028",
    "--- ",
    "no",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_stay_texts(text: str) -> None:
    # A license or a source that is a URL is a link.
    fact = f"at {text}" if text.startswith("https") else text
    data = make_card(
        [LABELS],
        ids={text: 0},
        description=text,
        license=fact,
        source=fact,
        container="hf_parquet",
    )[CARD]
    found = header(data)
    assert (
        list(found) == [*("pretty_name", "license", "license_name", "dataset_info", "configs")]
        or found["license"] == text
    )
    body = data.decode().partition("\n---\n\n")[2]
    # Code is never read as anything else.
    prose = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", body.replace("\\`", ""))
    assert not re.search(r"(?<!\\)[<\[]|(?<!\\)\]\(|[a-z]://|www\.", prose)
    assert [line for line in prose.splitlines() if line.startswith("#")] == [
        "# toy 1.2.3",
        "## Classes",
        "## License and source",
        "## How to read it",
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_classes_are_the_same_in_the_header(text: str) -> None:
    label_map = LabelMap(ids={text: 0}, names={})
    dataset = msgspec.structs.replace(make_dataset(features=[LABELS]), container="hf_parquet")
    found = header(make_files(dataset=dataset, label_map=label_map)[CARD])
    (feature,) = found["dataset_info"]["features"]
    # YAML knows three more ends of lines than Python's `split("\n")`.
    expected = re.sub("\r\n?", "\n", text)
    assert feature["sequence"]["class_label"]["names"] in ({"0": text}, {"0": expected})


def test_only_a_source_that_is_a_url_is_a_link() -> None:
    card = make_card(source="https://example.org/a?b=c")
    assert b"- Source: <https://example.org/a?b=c>\n" in card[CARD]
    for source in ("javascript:alert(1)", "https://a b", "see https://example.org", "https://a>b"):
        card = make_card(source=source)
        assert "Source: <" not in card[CARD].decode()
    assert json.loads(card[CROISSANT])["url"] == source
    named = json.loads(make_card(source="Zürich, 2026")[CROISSANT])
    assert (named["isBasedOn"], "url" in named) == ("Zürich, 2026", False)


def test_markdown_is_escaped() -> None:
    assert escape_markdown("a_b *c* [d] 1.5 e.g. x") == r"a\_b \*c\* \[d\] 1.5 e.g. x"
    assert escape_markdown("1. a\n2) b\n- c") == "1\\. a\n2\\) b\n\\- c"


def test_many_classes_are_cut() -> None:
    text = make_card(ids={f"c{number}": number for number in range(250)})[CARD].decode()
    assert "`c199`" in text
    assert "`c200`" not in text
    assert "... and 50 more, which are in `label_map.pbtxt`." in text


def test_croissant_has_a_set_of_files_for_each_split() -> None:
    document = json.loads(files_of("hf_parquet", IMAGE)[CROISSANT])
    (files,) = document["distribution"]
    assert files["@type"] == "cr:FileSet"
    assert files["includes"] == "toy-train-*-of-*.parquet"
    assert files["encodingFormat"] == "application/x-parquet"
    assert (document["license"], document["url"]) == ("cc-by-4.0", "https://example.org/toy")
    assert document["version"] == "1.2.3"


def test_patterns_of_odd_names_match_these_names_alone() -> None:
    assert FileNaming(prefix="{split}[1]*.tar", template="").glob("train") == "train[[]1][*].tar"
    assert FileNaming(prefix="a-{split}", suffix=".tar").glob("train") == "a-train-*-of-*.tar"
