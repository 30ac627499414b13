"""A user's program with every public name. mypy checks it against an installed wheel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import PCollection
from typing_extensions import assert_type

import shardbeam


def write() -> str:
    planned = shardbeam.plan({"name": "pets"})
    assert_type(planned, shardbeam.PlanResult)
    assert_type(planned.splits["train"].images, int)
    config = shardbeam.load_config("pets.yaml")
    try:
        built = shardbeam.build(config, if_changed=True, processes=2)
    except shardbeam.RefusedError as refused:
        assert_type(refused.result, shardbeam.BuildResult)
        raise
    except (shardbeam.ConfigError, shardbeam.FormatError, shardbeam.UsageError) as error:
        raise SystemExit(str(error)) from error
    except (shardbeam.LeaseError, shardbeam.InputError, shardbeam.RunError) as error:
        raise SystemExit(1) from error
    except shardbeam.ShardbeamError:
        raise
    assert_type(built, shardbeam.BuildResult)
    assert_type(built.images_per_s, float)
    return built.output


def to_record(name: str) -> shardbeam.Record:
    return shardbeam.Record.of(name, image=name, boxes=[("cat", 0, 0, 8, 8)])


def write_with_beam(records: PCollection[shardbeam.Record]) -> None:
    _ = records | shardbeam.WriteToTFRecord("pets.tfrecord", num_shards={"train": 2})


class Pets(shardbeam.Format, frozen=True, kw_only=True):
    images: str
    annotations: tuple[str, ...] = ()

    def annotation_files(self) -> tuple[str, ...]:
        return self.annotations


def read(path: str) -> Iterator[npt.NDArray[np.float32]]:
    names = shardbeam.class_names(path)
    assert_type(names, dict[int, str])
    examples = shardbeam.open(path, split="train", where={"classes": ["cat", 3], "min_objects": 1})
    value = examples[0]["image/object/class/label"]
    assert_type(value, bytes | int | float | list[bytes] | npt.NDArray[Any])
    image, target = examples[10:20].detection(boxes="xywh", masks=True)[0]
    assert_type(image, npt.NDArray[np.uint8])
    assert_type(target["image_id"], str)
    yield target["boxes"]
    for picture, label in examples.classification()[[3, 1]]:
        assert_type(picture, npt.NDArray[np.uint8])
        assert_type(label, int)
    dataset = shardbeam.load_dataset(path, split="train", seed=0)
    print(dataset.batch(8))


def count(results: Mapping[str, shardbeam.PlanResult]) -> int:
    return sum(split.images for each in results.values() for split in each.splits.values())
