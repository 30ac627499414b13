"""Labels in names, end to end."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from tests.support.builds import build


def test_a_pattern_with_further_groups(tmp_path: Path) -> None:
    names = ["x/left-cat-1.png", "x/right-dog-2.png", "y/left-dog-3.png", "y/nothing.png"]
    for name in names:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(path)

    built = build(
        *("filename-label", "--images", tmp_path / "images"),
        *("--pattern", r"(?P<camera>left|right)-(?P<label>[a-z]+)"),
        *("--set", "rejects.max_ratio=0.5"),
        output=tmp_path / "out",
    )

    assert built.exit_code == 0
    found = {
        key: (example.image_labels, example.features["camera"])
        for key, example in built.by_key().items()
    }
    assert found == {
        "x/left-cat-1.png": ([("cat", 0)], [b"left"]),
        "x/right-dog-2.png": ([("dog", 1)], [b"right"]),
        "y/left-dog-3.png": ([("dog", 1)], [b"left"]),
    }
    assert built.reasons() == {("y/nothing.png", "name_not_matched"): 1}


def test_images_without_labels(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "frame7.png")

    built = build(
        *("filename-label", "--images", tmp_path / "images", "--pattern", r"(?P<frame>\d+)"),
        output=tmp_path / "out",
    )

    assert built.exit_code == 0
    (example,) = built.examples()
    assert example.features["frame"] == [b"7"]
    assert "image/class/label" not in example.features


def test_a_pattern_that_cannot_work_is_one_line(tmp_path: Path) -> None:
    built = build(
        *("filename-label", "--images", tmp_path, "--pattern", "("), output=tmp_path / "out"
    )

    assert built.exit_code == 2
    assert "pattern: no regular expression" in built.stderr
