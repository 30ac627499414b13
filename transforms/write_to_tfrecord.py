"""WriteToTFRecord: Beam's transform of that name, with deterministic shards of Examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam import coders as beam_coders
from apache_beam.io import filesystem
from apache_beam.pvalue import PCollection

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.shard import ShardSettings
from shardbeam.transforms.dataset.shard_plan import FileNaming
from shardbeam.transforms.write_shards import WriteResult, WriteShards


class WriteToTFRecord(beam.io.WriteToTFRecord):
    """Writes `(split, Record)` into sharded TFRecord files of `tf.train.Example`.

    Takes the arguments of `beam.io.WriteToTFRecord`, and differs from it as `WriteShards` does,
    which does the work.

        records | WriteToTFRecord(
            "/data/coco/coco-{split}.tfrecord",
            settings=ShardSettings(splits=["train"], encoder=..., staging=...),
            census=...,
            label_map=...,
        )

    Args:
        file_path_prefix: As Beam's; `{split}` in it stands for the split's name.
        coder: Only Beam's default, BytesCoder: what is written are serialized Examples.
        file_name_suffix: As Beam's.
        num_shards: Shards of every split, or by split (`{split: shards}`); 0 means by size.
        shard_name_template: As Beam's: `S` and `N` stand for shard and shard count. The default
            pads them to at least five digits, as TFDS reads them. Window templates are refused.
        compression_type: Only uncompressed: TFDS loads no compressed shards.
        triggering_frequency: Refused, the input being bounded.
        settings: How the shards are made; their container is TFRecord.
        census: One `Census`, of these records.
        label_map: One `LabelMap`.

    Raises:
        ValueError: (at construction) An argument that no reader above could load, or that
            makes sense for unbounded input only. (in `expand`) The input is unbounded.
        InputError: (at run time) A split has no examples, or staging cannot be written.
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: beam_coders.Coder | None = None,
        file_name_suffix: str = "",
        num_shards: int | Mapping[str, int] = 0,
        shard_name_template: str | None = None,
        compression_type: str = filesystem.CompressionTypes.AUTO,
        triggering_frequency: int | None = None,
        *,
        settings: ShardSettings,
        census: PCollection[Census],
        label_map: PCollection[LabelMap],
    ) -> None:
        if coder is not None and not isinstance(coder, beam_coders.BytesCoder):
            raise ValueError(f"coder must be BytesCoder, got {type(coder).__name__}")
        if triggering_frequency is not None:
            raise ValueError("triggering_frequency is for unbounded input; this input is bounded")
        if settings.container != "tfrecord":
            raise ValueError(f"container {settings.container!r}: use WriteShards for it")
        if compression_type == filesystem.CompressionTypes.AUTO:
            name = f"{file_path_prefix}{file_name_suffix}"
            compression_type = filesystem.CompressionTypes.detect_compression_type(name)
        if compression_type != filesystem.CompressionTypes.UNCOMPRESSED:
            raise ValueError(
                f"compression {compression_type!r}: tfds.load reads uncompressed shards only; "
                "images are compressed already"
            )
        super().__init__(
            file_path_prefix, file_name_suffix=file_name_suffix, compression_type=compression_type
        )
        self._write = WriteShards(
            naming=FileNaming(
                prefix=file_path_prefix, suffix=file_name_suffix, template=shard_name_template
            ),
            num_shards=num_shards,
            settings=settings,
            census=census,
            label_map=label_map,
        )

    def display_data(self) -> dict[str, Any]:
        """Shows the settings that decide the files, on runners that have a console."""
        return self._write.display_data()

    def expand(self, records: PCollection[tuple[str, Record]]) -> WriteResult:
        """Adds the step to a pipeline."""
        return records | self._write
