"""Errors that `benchmarks.findings` plants."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.findings import ERRORS, Picture, main, plant
from tests.support.image_makers import photograph, save

CLASSES = (1, 2, 3)


def make_pictures() -> list[Picture]:
    data = save(photograph(width=120, height=80, seed=1), "JPEG")
    boxes = [[10, 10, 30, 20], [60, 30, 25, 40]]
    return [
        Picture(
            f"{number}.jpg",
            "train",
            data,
            [{"category_id": 1 + place, "bbox": box} for place, box in enumerate(boxes)],
        )
        for number in range(2 * len(ERRORS))
    ]


def test_each_error_has_a_picture_of_its_own() -> None:
    clean = make_pictures()
    planted, names = plant(copy.deepcopy(clean), classes=CLASSES, each=2, seed=3)
    assert names.keys() == ERRORS.keys()
    assert [len(each) for kind, each in names.items() if kind != "no objects"] == [2] * 26
    changed = [name for each in names.values() for name in each]
    assert len({name.removeprefix("copy-") for name in changed}) == len(changed)
    before = {each.name: each for each in clean}
    differ = {each.name for each in planted if before.get(each.name) != each}
    assert differ >= {*changed}
    assert {name.removeprefix("copy-") for name in differ - {*changed}} <= {
        name.removeprefix("copy-") for name in changed
    }
    assert plant(clean, classes=CLASSES, each=2, seed=3) == (planted, names)
    (cropped, _) = names["a cropped copy (75 to 95 % of each side)"]
    data = next(each.data for each in planted if each.name == cropped)
    assert 0.75**2 * 120 - 1 <= Image.open(io.BytesIO(data)).width <= 0.95 * 0.75 * 120 + 1


def test_too_few_pictures_are_refused() -> None:
    for pictures, classes in ((make_pictures()[:20], CLASSES), (make_pictures(), (1,))):
        with pytest.raises(SystemExit, match="two classes"):
            plant(pictures, classes=classes, each=2, seed=0)


@pytest.mark.slow
def test_what_has_a_rule_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["--draw", "240", "--each", "2"])
    rules, predictions = capsys.readouterr().out.split("\n\n")
    rows = [line.split(" | ") for line in rules.splitlines()[2:]]
    assert len(rows) == len(ERRORS)
    missed = {kind for _, kind, planted, found, _ in rows if planted != found}
    # Numbers of objects are compared with those of 99 % of a split's pictures.
    assert missed - {"many_objects"} == {"no rule", "duplicates"}  # Not cropped from the centre.
    # Two of each error, of which a good detector shows both.
    shown = [line.split(" | ")[2:4] for line in predictions.splitlines()[2:]]
    assert shown == [["2", "2"]] * 3
