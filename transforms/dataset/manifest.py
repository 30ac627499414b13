"""The manifest of a dataset, which lists its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c
import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import decoding
from shardbeam.transforms.core.labels import Skeletons
from shardbeam.transforms.dataset.dataset_files import DatasetFile, ShardEntry, check_paths
from shardbeam.transforms.dataset.file_names import MANIFEST
from shardbeam.transforms.dataset.outcome import DuplicateCounts, SplitOutcome
from shardbeam.transforms.examples.features import FeatureSpec
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.listed_files import read_optional


class SplitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A split.

    Attributes:
        shards: Its shards, in order.
        outcome: What became of its inputs.
    """

    shards: tuple[ShardEntry, ...]
    outcome: SplitOutcome


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a dataset was built from.

    Attributes:
        images: How many were read.
        fingerprint: Sum of their fingerprints (`dataset.input_counts`).
    """

    images: int = 0
    fingerprint: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest as it is read; `dataset.metadata.metadata_files` writes it.

    Attributes:
        shardbeam: Version of Shardbeam.
        version: The dataset's version.
        seed: Key of the hash that decided split, shard and order.
        config: The config, without the roots of its input and output.
        features: The features of every Example.
        splits: What was written, by split.
        files: The dataset's files other than shards and the manifest itself.
        labels: `{class name: id}`.
        skeletons: Lines between keypoints, where the sources declare some.
        codecs: `{library: version}` of the libraries that decide bytes.
        inputs: The images that it was built from.
        duplicates: The numbers of duplicates; None if they were not looked for.
        checksum: Checksum of everything else in the file.
        numbered_maps: Whether values of maps are plain numbers instead of class ids.
    """

    shardbeam: str
    config: dict[str, Any]
    features: tuple[FeatureSpec, ...]
    splits: Mapping[str, SplitEntry]
    files: tuple[DatasetFile, ...]
    labels: Mapping[str, int] = {}
    skeletons: Skeletons = {}
    codecs: Mapping[str, str] = {}
    version: str = ""
    seed: int = 0
    inputs: Inputs = Inputs()
    duplicates: DuplicateCounts | None = None
    checksum: str = ""
    numbered_maps: bool = False

    @property
    def name(self) -> str:
        """The dataset's name."""
        return str(self.config.get("name", ""))

    @property
    def ignored_findings(self) -> frozenset[str]:
        """Kinds of findings that the config ignores."""
        findings = self.config.get("findings")
        ignored = findings.get("ignore") if isinstance(findings, dict) else None
        return frozenset(map(str, ignored if isinstance(ignored, list) else ()))

    def shards(self) -> Iterator[ShardEntry]:
        """Yields the shards of all splits."""
        for split in self.splits.values():
            yield from split.shards

    def paths(self) -> Iterator[str]:
        """Yields the paths, below the dataset's folder, of all shards and files it lists."""
        for file in (*self.shards(), *self.files):
            yield file.path


class _Sealed(msgspec.Struct, frozen=True):
    checksum: str


_decoder = JsonDecoder(Manifest)
_checksum_decoder = JsonDecoder(_Sealed)


def formats_in(config: Mapping[str, Any]) -> list[str]:
    """Returns the names of the formats in a config, as a manifest holds it, sorted."""
    splits = config.get("splits")
    sources = [config.get("source"), *(splits.values() if isinstance(splits, dict) else ())]
    flat = [each for group in sources for each in (group if isinstance(group, list) else [group])]
    names = (each.get("format") for each in flat if isinstance(each, dict))
    return sorted({str(name) for name in names if name})


def encode_manifest(document: Mapping[str, Any]) -> bytes:
    """Renders `manifest.json`: indented, with sorted keys and a checksum of everything else."""
    checksum = google_crc32c.value(msgspec.json.encode(document, order="sorted"))
    sealed = {**document, "checksum": f"{checksum:08x}"}
    return msgspec.json.format(msgspec.json.encode(sealed, order="sorted"), indent=2) + b"\n"


def was_changed(data: bytes) -> bool:
    """Returns whether a manifest with a checksum was changed after it was written."""
    document = JsonDecoder().decode(data)
    return document.pop("checksum", "") != "" and encode_manifest(document) != data


def read_checksum(data: bytes) -> str:
    """Returns the checksum that a manifest of ours holds, without decoding the rest."""
    return _checksum_decoder.decode(data).checksum


def read_manifest(output: str) -> Manifest | None:
    """Returns the manifest of the dataset in `output`; None where there is none.

    Raises:
        InputError: The manifest is not ours, is damaged, or lists a path outside `output`.
    """
    uri = join_uri(output, MANIFEST)
    data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
    return None if data is None else decode_manifest(data, uri=uri)


def decode_manifest(data: bytes, *, uri: str) -> Manifest:
    """Decodes a manifest; see `read_manifest`."""
    fix = (
        "; if it was one, build the dataset again into a new folder: --reuse with this folder "
        "copies its undamaged shards"
    )
    with decoding(uri, "a manifest of Shardbeam", fix=fix):
        manifest = _decoder.decode(data)
    check_paths(manifest.paths(), uri=uri)
    return manifest
