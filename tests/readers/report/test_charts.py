"""Bars, by the statistics of a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from shardbeam.readers.report.charts import count_statistics, make_charts
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from tests.support.tfrecords import make_example, write_tfrecord


def test_classes_are_sorted_and_bars_are_their_counts() -> None:
    splits = {
        "train": Statistics(objects_by_class={"cat": 10, "dog": 70, "": 20}),
        "test": Statistics(objects_by_class={"cat": 5, "owl": 5}),
    }
    chart = make_charts(splits).classes
    assert chart is not None
    assert [(row.name, row.total, [part.amount for part in row.parts]) for row in chart.rows] == [
        ("dog", 70, [70, 0]),
        ("(no name)", 20, [20, 0]),
        ("cat", 15, [10, 5]),
        ("owl", 5, [0, 5]),
    ]
    widths = [[round(part.width, 6) for part in row.parts] for row in chart.rows]
    assert widths[0] == [100, 0]
    assert widths[2] == [pytest.approx(100 / 7), pytest.approx(50 / 7)]
    assert (chart.most, chart.has_log) == (70, False)


def test_images_are_counted_where_there_are_no_objects() -> None:
    charts = make_charts({"train": Statistics(images_by_class={"a": 3, "b": 4})})
    assert charts.classes is not None
    assert (charts.classes.title, charts.classes.unit) == ("Images by class", "images")
    assert [row.name for row in charts.classes.rows] == ["b", "a"]


def test_histograms_are_stacked_by_split_and_keep_empty_bins() -> None:
    splits = {
        "train": Statistics(
            widths={"0": 1, "128": 6}, width_range=(9, 190), formats={"png": 2, "jpeg": 5}
        ),
        "test": Statistics(widths={"128": 2, "64": 4}, width_range=(70, 130)),
    }
    sizes = {chart.heading: chart for chart in make_charts(splits).sizes}
    assert sizes.keys() == {"width in px", "format"}
    chart = sizes["width in px"]
    assert [(row.name, row.total) for row in chart.rows] == [
        ("0 to 31", 1),
        ("32 to 47", 0),
        ("48 to 63", 0),
        ("64 to 95", 4),
        ("96 to 127", 0),
        ("128 to 191", 8),
    ]
    assert [(part.start, part.width) for part in chart.rows[5].parts] == [(0, 75), (75, 25)]
    assert chart.summary == "least 9, median 128 to 191, most 190"
    assert (chart.title, chart.unit) == ("Images by width in px", "images")
    assert sizes["format"].summary == ""


def test_numbers_of_objects_are_summed_up_exactly() -> None:
    split = Statistics(
        objects_per_image={"0": 2, "1": 1, "15": 4},
        images_by_objects={"0": 2, "1": 1, "17": 3, "9": 0, "18": 1},
    )
    (chart,) = make_charts({"train": split}).sizes
    assert chart.summary == "least 0, median 17, most 18"


def test_what_all_images_share_is_said_once() -> None:
    split = Statistics(
        images=1200,
        width_range=(640, 640),
        height_range=(480, 480),
        widths={"512": 1200},
        heights={"384": 1200},
        aspects={"1333": 1200},
        formats={"jpeg": 1200},
        relative_areas={"0": 3, "50": 1},
    )
    charts = make_charts({"train": split})
    assert charts.same == [
        "All 1,200 images have 640 \N{MULTIPLICATION SIGN} 480 pixels.",
        "All 1,200 images: format jpeg.",
    ]
    assert [chart.title for chart in charts.sizes] == ["Boxes by share of the image"]


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


def test_keypoints_and_pairs() -> None:
    splits = {
        "train": Statistics(
            examples=9,
            images_by_class={"cat": 5},
            keypoints={name: {"2": 3, "0": 1} for name in ("point_10", "point_9", "nose")},
            pairs=9,
            count_of_pairs={"cat": {"dog": 4, "": 5}},
        ),
        "test": Statistics(images_by_class={"owl": 5}),
    }
    charts = make_charts(splits)
    assert charts.keypoints is not None
    assert [part.amount for part in charts.keypoints.rows[0].parts] == [3, 0, 1]
    assert [row.name for row in charts.keypoints.rows] == ["nose", "point_9", "point_10"]
    assert [pair[:3] for pair in charts.pairs] == [("cat", "(no name)", 5), ("cat", "dog", 4)]


def test_very_many_classes() -> None:
    many = {f"class {number:04}": 5000 - number for number in range(1500)}
    chart = make_charts({"train": Statistics(objects_by_class=many)}).classes
    assert chart is not None
    assert len(chart.rows) + len(chart.more) + chart.left_out == 1500
    assert [row.total for row in (*chart.rows, *chart.more)] == list(range(5000, 4000, -1))


def test_very_many_splits_are_one() -> None:
    splits = {f"split {number}": Statistics(objects_by_class={"cat": 1}) for number in range(500)}
    charts = make_charts(splits)
    assert charts.classes is not None
    assert [(row.name, row.total, len(row.parts)) for row in charts.classes.rows] == [
        ("cat", 500, 1)
    ]
    assert charts.splits == ["all splits"]


def test_nothing() -> None:
    charts = make_charts({"train": Statistics()})
    assert (charts.classes, charts.sizes, charts.keypoints, charts.pairs) == (None, [], None, [])


def test_files_of_other_programs_are_counted(tmp_path: Path) -> None:
    record = make_example({"image/class/text": [b"cat"], "image/class/label": [1]})
    path = write_tfrecord(tmp_path / "train-0-of-1.tfrecord", record, record)
    dataset = open_dataset(str(tmp_path))
    found = count_statistics(dataset, feature_map=read_feature_map(dataset))
    assert found["train"].images_by_class == {"cat": 2}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError):
        count_statistics(dataset, feature_map=read_feature_map(dataset))


def test_heat_maps_have_a_shade_for_each_cell_and_a_table() -> None:
    total = Statistics(
        objects_by_class={"cat": 5, "": 1},
        box_centres="0:4 136:1 255:1",
        box_sizes="0:5 255:1",
        box_centres_by_class={"": "136:1", "cat": "0:4 255:1"},
        box_sizes_by_class={"": "255:1", "cat": "0:5"},
    )
    heat = make_charts({"train": total}).heat
    assert heat is not None
    centres, sizes = heat.maps
    assert centres.paths == ["", "", "", "M8 8h1v1h-1zM15 15h1v1h-1z", "", "", "", "M0 0h1v1h-1z"]
    # Rows of heights begin at the bottom.
    assert (sizes.paths[-1], sizes.paths[3]) == ("M0 15h1v1h-1z", "M15 0h1v1h-1z")
    assert (centres.share, sizes.share) == ("17 %", "83 %")
    assert centres.rows[0] == ("0 to 25 %", ["67 %", "0 %", "0 %", "0 %"])
    assert sizes.rows[0] == ("to 100 %", ["0 %", "0 %", "0 %", "17 %"])
    assert [(each.name, each.objects) for each in heat.classes] == [("cat", 5), ("(no name)", 1)]
    assert make_charts({"train": Statistics(images=1)}).heat is None


def test_areas_show_where_sizes_begin() -> None:
    split = Statistics(
        areas={"341": 1, "1024": 2, "9216": 500},
        object_areas={"small": 1, "medium": 2, "large": 500},
    )
    (chart,) = make_charts({"train": split}).sizes
    assert chart.has_log
    assert [row.threshold for row in chart.rows] == [
        "small (COCO), below 32² px: 1 object",
        "medium (COCO), from 32² px: 2 objects",
        "",
        "large (COCO), from 96² px: 500 objects",
    ]


def test_facets_count_values_and_what_has_none() -> None:
    charts = make_charts(
        {
            "train": Statistics(examples=5, facets={"weather": {"sun": 1, "rain": 3}}),
            "test": Statistics(examples=1, facets={"weather": {"sun": 1}, "camera": {"a": 1}}),
            "other": Statistics(examples=1, facets_left_out={"camera": 1}),
        }
    )
    (chart,) = charts.facets
    assert [(row.name, [part.amount for part in row.parts]) for row in chart.rows] == [
        ("rain", [3, 0, 0]),
        ("sun", [1, 1, 0]),
        ("(no value)", [1, 0, 1]),
    ]
    assert charts.facets_left_out == ["camera"]


def test_lift_is_against_chance() -> None:
    split = Statistics(
        examples=8,
        pairs=2,
        images_by_class={"a": 2, "b": 4},
        count_of_pairs={"a": {"b": 2}},
    )
    (pair,) = make_charts({"train": split}).pairs
    assert pair.lift == 2
