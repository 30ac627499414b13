"""Bars, by the statistics of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from shardbeam.readers.report.charts import Chart, count_statistics, make_charts
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from tests.support.screens import check_screen
from tests.support.tfrecords import make_example, write_tfrecord

# {what the charts show: the statistics of each split}
SCENES: dict[str, Mapping[str, Statistics]] = {
    "classes of objects": {
        "train": Statistics(objects_by_class={"cat": 10, "dog": 70, "": 20}),
        "test": Statistics(objects_by_class={"cat": 5, "owl": 5}),
    },
    "classes of images": {"train": Statistics(images_by_class={"a": 3, "b": 4})},
    "histograms, with empty bins": {
        "train": Statistics(
            widths={"0": 1, "128": 6}, width_range=(9, 190), formats={"png": 2, "jpeg": 5}
        ),
        "test": Statistics(widths={"128": 2, "64": 4}, width_range=(70, 130)),
    },
    "numbers of objects, whose median is exact": {
        "train": Statistics(
            objects_per_image={"0": 2, "1": 1, "15": 4},
            images_by_objects={"0": 2, "1": 1, "17": 3, "9": 0, "18": 1},
        )
    },
    "what all images share": {
        "train": Statistics(
            images=1200,
            width_range=(640, 640),
            height_range=(480, 480),
            widths={"512": 1200},
            heights={"384": 1200},
            aspects={"1333": 1200},
            formats={"jpeg": 1200},
            relative_areas={"0": 3, "50": 1},
        )
    },
    "keypoints and pairs": {
        "train": Statistics(
            examples=9,
            images_by_class={"cat": 5},
            keypoints={name: {"2": 3, "0": 1} for name in ("point_10", "point_9", "nose")},
            pairs=9,
            count_of_pairs={"cat": {"dog": 4, "": 5}},
        ),
        "test": Statistics(images_by_class={"owl": 5}),
    },
    "a pair that is twice as frequent as by chance": {
        "train": Statistics(
            examples=8, pairs=2, images_by_class={"a": 2, "b": 4}, count_of_pairs={"a": {"b": 2}}
        )
    },
    "very many splits": {
        f"split {number}": Statistics(objects_by_class={"cat": 1}) for number in range(500)
    },
    "nothing": {"train": Statistics()},
    "nothing but images": {"train": Statistics(images=1)},
    # Rows of heights begin at the bottom.
    "heat maps": {
        "train": Statistics(
            objects_by_class={"cat": 5, "": 1},
            box_centres="0:4 136:1 255:1",
            box_sizes="0:5 255:1",
            box_centres_by_class={"": "136:1", "cat": "0:4 255:1"},
            box_sizes_by_class={"": "255:1", "cat": "0:5"},
        )
    },
    "where sizes begin": {
        "train": Statistics(
            areas={"341": 1, "1024": 2, "9216": 500},
            object_areas={"small": 1, "medium": 2, "large": 500},
        )
    },
    "facets, and images without a value": {
        "train": Statistics(examples=5, facets={"weather": {"sun": 1, "rain": 3}}),
        "test": Statistics(examples=1, facets={"weather": {"sun": 1}, "camera": {"a": 1}}),
        "other": Statistics(examples=1, facets_left_out={"camera": 1}),
    },
}


def show_chart(chart: Chart) -> Iterator[str]:
    yield f"{chart.title} ({chart.unit}), {chart.heading}: log {chart.has_log}"
    yield f"    widest {chart.widest}"
    for row in (*chart.rows, *chart.more):
        yield f"    {row.name} | {row.total} | {' '.join(map(str, row.counts))} | {row.threshold}"
    yield f"    {chart.summary}"


def test_what_is_drawn() -> None:
    shown: list[str] = []
    for title, splits in SCENES.items():
        found = make_charts(splits)
        shown += [f"--- {title}", f"splits: {', '.join(found.splits)}"]
        for chart in (found.classes, *found.sizes, found.keypoints, *found.facets):
            shown += [] if chart is None else show_chart(chart)
        shown += found.same
        shown += [
            f"{pair.first} + {pair.second}: {pair.images}, {pair.lift:g}" for pair in found.pairs
        ]
        shown += [f"left out: {key}" for key in found.facets_left_out]
        if found.heat is not None:
            for heat in found.heat.maps:
                shown += [f"a share of {heat.share}", *heat.paths]
                shown += [f"    {name}: {cells}" for name, cells in heat.rows]
            shown += [f"{each.name}: {each.objects}" for each in found.heat.classes]
    check_screen("charts", "\n".join(shown))


def test_bars_count_pictures() -> None:
    split = Statistics(
        widths={"0": 1, "128": 6},
        keypoints={"nose": {"2": 3}, "tail": {"0": 3}},
        pairs=4,
        count_of_pairs={"cat": {"dog": 4}},
    )
    charts = make_charts({"train": split})
    assert charts.keypoints is not None
    numbers = {
        row.name: row.bar for chart in (*charts.sizes, charts.keypoints) for row in chart.rows
    }
    picture = Statistics(widths={"128": 1}, keypoints={"nose": {"2": 1}})
    found = charts.bars.of_picture(picture, frozenset({"cat", "dog", "owl"}))
    assert set(found) == {numbers["128 to 191"], numbers["nose"], charts.pairs[0].bar}
    assert charts.bars.of_picture(picture, frozenset({"cat"})) == sorted(
        set(found) - {charts.pairs[0].bar}
    )


def test_very_many_classes() -> None:
    many = {f"class {number:04}": 5000 - number for number in range(1500)}
    chart = make_charts({"train": Statistics(objects_by_class=many)}).classes
    assert chart is not None
    assert len(chart.rows) + len(chart.more) + chart.left_out == 1500
    assert [row.total for row in (*chart.rows, *chart.more)] == list(range(5000, 4000, -1))


def test_files_of_other_programs_are_counted(tmp_path: Path) -> None:
    record = make_example({"image/class/text": [b"cat"], "image/class/label": [1]})
    path = write_tfrecord(tmp_path / "train-0-of-1.tfrecord", record, record)
    dataset = open_dataset(str(tmp_path))
    found = count_statistics(dataset, feature_map=read_feature_map(dataset))
    assert found["train"].images_by_class == {"cat": 2}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError):
        count_statistics(dataset, feature_map=read_feature_map(dataset))
