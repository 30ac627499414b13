"""Other people's libraries load the datasets; `make consumers` gets these libraries."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.runners.tools import TOOLS
from tests.support.builds import coco_document
from tests.support.dataset import run
from tests.support.image_makers import photograph, save
from tests.support.pages import reading_rows

CONTAINERS = ("tfrecord", "webdataset", "hf_parquet")
# `make test-slow` tries the others, too.
SOME = [
    pytest.param(each, marks=pytest.mark.slow if number else ())
    for number, each in enumerate(CONTAINERS)
]
CLASSES = ("cat", "dog | wolf", "<b>", "no")


def consume(code: str, *arguments: Path | str, home: Path) -> Any:  # noqa: ANN401  # Any JSON.
    """Runs code in an environment with those libraries; it prints JSON in its last line."""
    python = TOOLS / "consumers" / "bin" / "python"
    if not python.exists():
        pytest.skip("the libraries are not here; `make consumers` gets them")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home)}
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A COCO dataset in both image formats, whose first images have no objects."""
    folder = tmp_path_factory.mktemp("consumers")
    (folder / "images").mkdir()
    names = [f"{number}.v1.{'png' if number % 3 == 0 else 'jpg'}" for number in range(12)]
    for number, name in enumerate(names):
        kind = "PNG" if name.endswith("png") else "JPEG"
        (folder / "images" / name).write_bytes(save(photograph(seed=number), kind))
    boxes = {
        name: [{"category_id": 2 * (i % 4) + 1, "bbox": [1, 2, 10, 12]}] if i >= 6 else []
        for i, name in enumerate(names)
    }
    categories = {name: 2 * i + 1 for i, name in enumerate(CLASSES)}
    document = coco_document(boxes, categories=categories)
    (folder / "coco.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def folders(images: Path) -> dict[str, Path]:
    for name in CONTAINERS:
        output = {"path": f"{images}/{name}", "container": name, "num_shards": 3}
        config = {
            "name": "d",
            "description": "A text: with <b> and\n---\nlines.",
            "card": {"license": "cc-by-4.0", "source": "https://example.org"},
            "source": {
                "format": "coco",
                "images": f"{images}/images",
                "annotations": [f"{images}/coco.json"],
            },
            "fractions": {"train": 0.75, "validation": 0.25},
            "exact": True,
            "output": output,
        }
        (images / f"{name}.yaml").write_text(json.dumps(config))
        run("build", str(images / f"{name}.yaml"), exit_code=0)
    return {name: images / name for name in CONTAINERS}


LOAD = """
    import datasets, json, sys

    found = {}
    for split, loaded in datasets.load_dataset(sys.argv[1]).items():
        for row in loaded:
            values = row.get("json", row)
            image = row.get("image/encoded") or row.get("jpg") or row.get("png")
            label = (loaded.features.get("json") or loaded.features)["image/object/class/label"]
            found[values["image/filename"]] = [
                split, image.size, image.format, values["image/object/class/label"],
                label.feature.names, values["image/object/bbox/xmin"],
            ]
    print(json.dumps(found))
"""


@pytest.mark.parametrize("name", ["webdataset", "hf_parquet"])
def test_hugging_face_loads_the_folder(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    found = consume(LOAD, folders[name], home=tmp_path)
    assert len(found) == 12
    assert {row[0] for row in found.values()} == {"train", "validation"}
    expected = ["unused 0", CLASSES[0], "unused 2", CLASSES[1], "unused 4", CLASSES[2]]
    for key, (_, size, kind, labels, names, boxes) in found.items():
        number = int(key.partition(".")[0])
        assert size == list(photograph().size)
        assert kind == ("PNG" if key.endswith("png") else "JPEG")
        assert labels == ([2 * (number % 4) + 1] if number >= 6 else [])
        assert len(boxes) == len(labels)
        assert names == [*expected, "unused 6", CLASSES[3]]


def test_hugging_face_does_not_load_the_index_of_tfrecord_files(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    code = """
        import datasets, json, sys
        try:
            loaded = str(datasets.load_dataset(sys.argv[1]))
        except Exception as error:
            loaded = f"{type(error).__name__}: {error}"
        print(json.dumps(loaded))
    """
    found = consume(code, folders["tfrecord"], home=tmp_path)
    assert "No (supported) data files found" in found


def test_webdataset_reads_the_tars(folders: dict[str, Path], tmp_path: Path) -> None:
    code = """
        import json, sys, webdataset
        found = {}
        shards = webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode("pil")
        for sample in shards:
            image = sample.get("jpg") or sample.get("png")
            row = sample["json"]
            found[row["image/filename"]] = [sample["__key__"], image.size, row["image/width"]]
        print(json.dumps(found))
    """
    shards = sorted(folders["webdataset"].glob("*.tar"))
    assert len(shards) == 6
    found = consume(code, *shards, home=tmp_path)
    assert len(found) == 12
    for key, size, width in found.values():
        assert len(key) == 9
        assert size == list(photograph().size)
        assert width == size[0]


def test_pandas_reads_the_tables(folders: dict[str, Path], tmp_path: Path) -> None:
    code = """
        import io, json, pandas, sys
        from PIL import Image
        table = pandas.concat(map(pandas.read_parquet, sys.argv[1:]))
        sizes = [Image.open(io.BytesIO(each["bytes"])).size for each in table["image/encoded"]]
        objects = table["image/object/area"].map(len)
        print(json.dumps([len(table), sizes, int(objects.sum())]))
    """
    shards = sorted(folders["hf_parquet"].glob("*.parquet"))
    rows, sizes, objects = consume(code, *shards, home=tmp_path)
    assert (rows, objects) == (12, 6)
    assert sizes == [list(photograph().size)] * 12


@pytest.mark.parametrize("name", SOME)
def test_croissant_is_valid(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    code = """
        import json, logging, mlcroissant, sys
        logging.disable(logging.CRITICAL)
        dataset = mlcroissant.Dataset(sys.argv[1])
        issues = dataset.metadata.ctx.issues
        files = [(each.name, each.includes) for each in dataset.metadata.distribution]
        print(json.dumps([sorted(issues.errors), sorted(issues.warnings), files]))
    """
    errors, warnings, files = consume(code, folders[name] / "croissant.json", home=tmp_path)
    assert errors == []
    # No date and no citation are known.
    assert [line for line in warnings if "datePublished" not in line and "citeAs" not in line] == []
    assert [split for split, _ in files] == ["train", "validation"]
    for _, (pattern,) in files:
        assert len(list(folders[name].glob(pattern))) == 3


@pytest.mark.parametrize(
    ("module", "shown", "read", "shards"),
    [
        ("datasets", "demo/parquet", "hf_parquet", 3),
        ("webdataset", "demo/tars/shapes-train-00000-of-00001.tar", "webdataset/d-train-00000*", 1),
    ],
)
def test_the_first_page_shows_how_to_read(
    module: str, shown: str, read: str, shards: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    root = folders["tfrecord"].parent
    (path,) = root.glob(read)
    info = json.loads((root / "tfrecord" / "dataset_info.json").read_bytes())
    (lengths,) = (each["shardLengths"] for each in info["splits"] if each["name"] == "train")
    code = reading_rows()[module].replace(shown, str(path))
    assert str(path) in code
    program = f"import {module}\nprint(len(list({code})))"
    assert consume(program, home=tmp_path) == sum(map(int, lengths[:shards]))
