"""Reads datasets as `tf.data.Dataset`. Only this module imports TensorFlow; no command does."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Sequence
from typing import NamedTuple

from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.readers.open.stored_features import find_features, infer_features
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError, reading
from shardbeam.transforms.core.extras import install_command
from shardbeam.transforms.examples.features import FeatureKind, ImageShape, StoredFeature
from shardbeam.transforms.storage.base import StoredFile, is_uri
from shardbeam.transforms.storage.find import expand_pattern, storage_for

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; reading with tf.data needs TensorFlow: {install_command('tensorflow')}",
        name=error.name,
    ) from error

# As in TFDS, so that both give the Examples in the same order.
_BLOCK_LENGTH = 16
_DTYPES = {
    FeatureKind.BYTES: tf.string,
    FeatureKind.INT64: tf.int64,
    FeatureKind.FLOAT: tf.float32,
}
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"

PathLike = str | os.PathLike[str]


def load_dataset(
    path: PathLike | Sequence[PathLike],
    *,
    split: str | None = None,
    shuffle_files: bool = False,
    seed: int | None = None,
    decode_images: bool = True,
    interleave: int = 16,
) -> tf.data.Dataset:
    """Reads a dataset as parsed Examples, `{key: tensor}`, one by one; batch them yourself.

    The folder's `features.json` says what each key holds. Without this file, the features are
    inferred from about 64 records (`infer_features`); a later record that does not fit ends the
    iteration with an `InvalidArgumentError` that names the key.

    - A single value is a scalar, of dtype `tf.string`, `tf.int64` or `tf.float32`.
    - A list whose length varies is a tensor of shape `[None]`, empty where there is nothing:
      `ragged_batch(n)` makes a `tf.RaggedTensor` of it, `padded_batch(n)` pads it. Images in
      a list (masks) stay encoded, for `tf.map_fn(tf.io.decode_png, masks,
      fn_output_signature=tf.uint8)`.
    - An image, JPEG or PNG, is `tf.uint8` of shape `[height, width, channels]`: 3 channels in
      datasets of Shardbeam, even for gray images; if inferred, 1 if all are gray. Maps of
      16 bits (`panoptic.bits`) are `tf.uint16`.

    `interleave` files are read at a time, 16 Examples of each in turn, in the same order every
    time, unless the files are shuffled. Files are shuffled again in each epoch; add
    `.shuffle(n)` for Examples. A dataset's folder also says how many Examples there are, so
    that `cardinality()` is known, and a shard that lacks some is an error.

    Args:
        path: A dataset's folder, a pointer to it (`output.latest`), a folder of TFRecord files, a
            TFRecord file, a pattern such as `data/train-*.tfrecord`, or a list of files.
        split: Which split of a folder; required if it has several.
        shuffle_files: Whether the order of the files is random.
        seed: A seed makes the random order the same in every run.
        decode_images: Whether images are decoded; otherwise they stay encoded, `tf.string`.
        interleave: How many files are read at a time.

    Returns:
        The dataset.

    Raises:
        InputError: There is no such dataset or split, a shard is missing, or the features cannot
            be inferred.
        ValueError: `interleave` is below 1, or `split` is given with files.
    """
    if interleave < 1:
        raise ValueError(f"interleave must be 1 or more, not {interleave}")
    source = _open(path, split=split)
    deterministic = not shuffle_files or seed is not None
    # Names of files need not be valid Unicode.
    files = tf.data.Dataset.from_tensor_slices([os.fsencode(file.uri) for file in source.files])
    if shuffle_files:
        files = files.shuffle(len(source.files), seed=seed)
    records = files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(interleave, len(source.files)),
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=deterministic,
    )
    if source.examples is not None:
        records = records.apply(tf.data.experimental.assert_cardinality(source.examples))
    return records.map(
        functools.partial(_parse_example, features=source.features, decode_images=decode_images),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=deterministic,
    )


class _Source(NamedTuple):
    """The files to read, their features, and how many Examples they hold, if known."""

    files: Sequence[StoredFile]
    features: Sequence[StoredFeature]
    examples: int | None


def _open(path: PathLike | Sequence[PathLike], *, split: str | None) -> _Source:
    if not isinstance(path, (str, os.PathLike)):
        return _open_files(path, split=split)
    path = os.fspath(path)
    if is_uri(path):
        matches = [match for match in expand_pattern(path) if match != path]
    else:
        matches = [] if os.path.exists(path) else sorted(glob.glob(path))
    if matches:
        return _open_files(matches, split=split)
    dataset = open_dataset(path)
    chosen = dataset.find_split(split, hint="name one, or give a list or a pattern of files")
    if chosen.container != "tfrecord":
        raise InputError(
            uri=path,
            problem=f"tf.data reads no {chosen.container} files; read them with "
            f"{find_container(chosen.container).readers}",
        )
    return _Source(chosen.shards, find_features(dataset), chosen.examples)


def _open_files(paths: Sequence[PathLike], *, split: str | None) -> _Source:
    if split is not None:
        raise ValueError(f"files have no splits, so that split must be None, not {split!r}")
    if not paths:
        raise ValueError("expected at least one file, got an empty list")
    files = [_find_file(os.fspath(path)) for path in paths]
    return _Source(files=files, features=infer_features(files), examples=None)


def _parse_example(
    record: tf.Tensor, *, features: Sequence[StoredFeature], decode_images: bool
) -> dict[str, tf.Tensor]:
    example: dict[str, tf.Tensor] = tf.io.parse_single_example(
        record, {feature.key: _parser(feature) for feature in features}
    )
    for feature in features:
        if decode_images and feature.image_shape is not None:
            example[feature.key] = _decode_image(
                example[feature.key],
                key=feature.key,
                shape=feature.image_shape,
                dtype=tf.uint16 if feature.image_bits == 16 else tf.uint8,
            )
    return example


def _parser(feature: StoredFeature) -> tf.io.FixedLenFeature | tf.io.FixedLenSequenceFeature:
    dtype = _DTYPES[feature.kind]
    if feature.repeated:
        return tf.io.FixedLenSequenceFeature(feature.shape, dtype, allow_missing=True)
    return tf.io.FixedLenFeature(feature.shape, dtype)


def _decode_image(data: tf.Tensor, *, key: str, shape: ImageShape, dtype: tf.DType) -> tf.Tensor:
    # TensorFlow 2.21 decodes other formats as well, but an animated WebP can end the process.
    storable = tf.debugging.assert_equal(
        _begins_with(data, _JPEG) | _begins_with(data, _PNG),
        True,
        message=f"{key}: neither JPEG nor PNG",
    )
    # Without this, decoding would not wait for the check.
    with tf.control_dependencies([storable]):
        image = tf.io.decode_image(
            data, channels=shape[-1] or 0, dtype=dtype, expand_animations=False
        )
    return tf.ensure_shape(image, shape)


def _begins_with(data: tf.Tensor, signature: bytes) -> tf.Tensor:
    return tf.strings.substr(data, 0, len(signature)) == signature


def _find_file(path: str) -> StoredFile:
    """Finds a file.

    Raises:
        InputError: It does not exist, or cannot be read.
    """
    with reading(path):
        return storage_for(path).find(path)
