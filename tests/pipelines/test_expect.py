"""`expect`: a dataset that is not what its config expects is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import Json, build_config, coco_document, coco_source
from tests.support.image_makers import photograph, save


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Json:
    folder = tmp_path_factory.mktemp("expect")
    objects: list[Json] = [{"bbox": [1, 1, 9, 9], "iscrowd": 1}, {"bbox": [60, 1, 9, 9]}]
    images = {"1.jpg": objects, "2.jpg": []}
    write_files(folder / "images", dict.fromkeys(images, save(photograph(), "JPEG")))
    return coco_source(folder, coco_document(images, categories={"cat": 1, "dog": 2}))


def test_what_is_refused_is_kept_and_a_milder_expectation_commits_it(
    source: Json, tmp_path: Path
) -> None:
    config: Json = {"splits": {"train": source}, "expect": {"min_images": 3}}
    refused = build_config(config, folder=tmp_path, exit_code=3)
    assert refused.summary["status"] == "refused"
    assert refused.summary["message"].startswith(
        "it is not what the config expects: split 'train': expect.min_images: expected "
    )
    assert not (refused.output / "dataset_info.json").exists()
    config["expect"] = {
        "min_images": 2,
        "min_objects": {"train": 2},
        "image_width": [64, 64],
        "image_height": [48, 48],
        "max_unannotated": 0.5,
        "max_crowds": 0.5,
        "max_corrections": 0.5,
    }

    built = build_config(config, folder=tmp_path)

    assert built.summary["resumed"]["shards"] == 1
    manifest = json.loads((built.output / "manifest.json").read_bytes())
    assert manifest["config"]["expect"]["min_images"] == 2
    # Expectations change no file but the manifest.
    other = build_config({"splits": {"train": source}}, folder=tmp_path, name="other")
    changed = {
        path.name
        for path in built.output.rglob("*")
        if path.is_file()
        and "runs" not in path.parts
        and path.read_bytes() != (other.output / path.relative_to(built.output)).read_bytes()
    }
    assert changed == {"manifest.json"}


def test_splits_that_the_source_predefines_are_known_later(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "images" / split / "cat").mkdir(parents=True)
        (tmp_path / "images" / split / "cat" / "1.jpg").write_bytes(save(photograph(), "JPEG"))
    source = {"format": "image-folder", "images": str(tmp_path / "images")}
    config: Json = {"source": source, "expect": {"min_images": {"test": 1}}}
    refused = build_config(config, folder=tmp_path, exit_code=2)
    assert "expect.min_images.test: unknown split; the splits are train, val" in refused.stderr

    config["expect"] = {"min_images": {"val": 2}}
    build_config(config, folder=tmp_path, exit_code=3)
