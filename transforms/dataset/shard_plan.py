"""How many shards each split gets, and how their files are named."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import Record, SizedImage
from shardbeam.transforms.core.sharding import HASH_BYTES, NO_SPLIT, shard_count, shard_index
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.outcome import PlannedCounts, SplitOutcome
from shardbeam.transforms.dataset.rejects import describe_rejects
from shardbeam.transforms.examples.encode.size_fields import MIN_MISFITS

# TFDS pads numbers to five digits, or to the number of digits of the shard count.
_MIN_DIGITS = 5
_DEFAULT_TEMPLATE = "-SSSSS-of-NNNNN"
_TEMPLATE = re.compile(r"^(?:[^A-Z]|S+|N+)*$")


class FileNaming(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a dataset are named.

    Attributes:
        prefix: Name of every file up to the shard's number, perhaps with folders in front;
            `{split}` stands for the split.
        suffix: The end of the name, after the shard's number.
        template: Runs of `S` and `N` stand for the shard's index and the shard count, padded
            with zeros to the run's length; empty for one file without a number. By default
            `-SSSSS-of-NNNNN`, padded further from 100,000 shards on, as TFDS does.
    """

    prefix: str
    suffix: str = ""
    template: str | None = None

    def __post_init__(self) -> None:
        template = self.template
        if template is None:
            return
        if not _TEMPLATE.match(template):
            raise ValueError(
                f"shard_name_template {template!r}: only runs of S and N are known; window "
                "templates (-W-, -V-) are for unbounded input"
            )
        if template and not ("S" in template and "N" in template):
            raise ValueError(f"shard_name_template {template!r} needs both S and N")

    @property
    def is_single_file(self) -> bool:
        """Whether each split is one file, without a number in its name."""
        return self.template == ""

    def file_name(self, *, split: str, shard_index: int, num_shards: int) -> str:
        """Names a shard's file, relative to the dataset's folder."""
        digits = max(_MIN_DIGITS, len(str(num_shards))) if self.template is None else 0

        def number(run: re.Match[str]) -> str:
            value = shard_index if run[0].startswith("S") else num_shards
            return f"{value:0{max(digits, len(run[0]))}d}"

        return self._fill(number).replace("{split}", split)

    def pattern(self, splits: Iterable[str]) -> str:
        """Returns a regular expression for all names that shards of these splits may have."""
        name = re.escape(self._fill(lambda _: "\0").replace("{split}", "\1"))
        return name.replace("\0", r"\d+").replace("\1", f"(?:{'|'.join(map(re.escape, splits))})")

    def glob(self, split: str) -> str:
        """Returns a pattern for the names of a split's shards; `split` may be `*`."""
        name = re.sub(r"[*?\[]", r"[\g<0>]", self._fill(lambda _: "\0"))
        return name.replace("\0", "*").replace("{split}", split)

    @property
    def tfds_template(self) -> str:
        """The naming as TFDS's `filepathTemplate`, in which numbers are padded to five digits."""
        template = self._fill(lambda run: "{SHARD_INDEX}" if run[0][0] == "S" else "{NUM_SHARDS}")
        return template.replace("{split}", "{SPLIT}")

    def _fill(self, number: Callable[[re.Match[str]], str]) -> str:
        template = _DEFAULT_TEMPLATE if self.template is None else self.template
        base = self.prefix.rpartition("/")[2]
        return f"{base}{re.sub(r'S+|N+', number, template)}{self.suffix}"


class ShardPlan(msgspec.Struct, frozen=True):
    """The number of shards of each split, and the totals of all shards.

    Attributes:
        num_shards: `{split: shards}`.
        totals: Sums over all splits.
        first_sizes: `{source: its first images}` that decide whether it exchanges width and height.
    """

    num_shards: Mapping[str, int]
    totals: PlannedCounts
    first_sizes: Mapping[str, tuple[SizedImage, ...]] = {}


def plan_shards(
    inputs: InputCounts,
    *,
    splits: Sequence[str],
    num_shards: int | Mapping[str, int],
    shard_size_bytes: int,
) -> ShardPlan:
    """Decides how many shards each split gets.

    Args:
        inputs: The merged inputs.
        splits: The splits' names.
        num_shards: The number of shards, either one number for each split or `{split: shards}`; 0,
            or no number for a split, decides by size.
        shard_size_bytes: Target size of a shard if the number is not given.

    Raises:
        InputError: A split has no examples. If all splits have none and there are rejects, this is
            not raised: the gate refuses the dataset after the files of rejects are written.
    """
    shards = {}
    empty = [split for split in splits if not _count(inputs, split).images]
    if empty and not (empty == list(splits) and inputs.samples.first_rejects):
        raise no_examples(empty[0], inputs=inputs)
    for split in splits:
        counts = _count(inputs, split)
        given = num_shards if isinstance(num_shards, int) else num_shards.get(split, 0)
        shards[split] = given or shard_count(
            num_bytes=counts.num_bytes,
            num_examples=counts.images,
            shard_size_bytes=shard_size_bytes,
        )
    return ShardPlan(
        num_shards=shards,
        totals=PlannedCounts(
            shards=sum(shards.values()),
            examples=sum(counts.images for counts in inputs.splits.values()),
            num_bytes=sum(counts.num_bytes for counts in inputs.splits.values()),
        ),
        first_sizes=inputs.first_sizes.at_least(MIN_MISFITS),
    )


def no_examples(split: str, *, inputs: InputCounts) -> InputError:
    """Returns the error of a split without examples, which no reader can load."""
    # An input with a wrong name may belong to no split.
    for name in (split, NO_SPLIT):
        counts = _count(inputs, name)
        if counts.rejected:
            first = inputs.samples.first_rejects.get(name, ())
            described = describe_rejects(counts.rejected, first=first)
            problem = f"has no examples: all inputs were rejected, {described}"
            break
        if counts.excluded:
            excluded = ", ".join(f"{count:,} {rule}" for rule, count in counts.excluded.items())
            problem = f"has no examples: all images are excluded, {excluded}"
            if Exclusion.UNANNOTATED.value in counts.excluded:
                problem += "; --unannotated keep writes images without annotations as negatives"
            for left_out in (inputs.samples.describe_archives(), inputs.describe_linked_folders()):
                problem += f"; {left_out}" if left_out else ""
            break
    else:
        problem = (
            "has no examples, and no reader can load an empty split; take it out of the config, "
            "or give it more images or a larger fraction"
        )
    return InputError(uri=f"split {split!r}", problem=problem)


def _count(inputs: InputCounts, split: str) -> SplitOutcome:
    return inputs.splits.get(split, SplitOutcome())


def shard_key(
    *, settings_digest: str, split: str, shard_index: int, num_shards: int, records: Iterable[bytes]
) -> str:
    """Digests all that decides a shard's bytes.

    Args:
        settings_digest: Digest of all settings that matter, and of the schema.
        split: The shard's split.
        shard_index: Which of the split's shards.
        num_shards: How many the split has.
        records: The shard's encoded records, in order.
    """
    digest = hashlib.sha256(
        msgspec.msgpack.encode(
            [settings_digest, split, shard_index, num_shards], order="deterministic"
        )
    )
    for record in records:
        digest.update(len(record).to_bytes(8, "little"))
        digest.update(record)
    return digest.hexdigest()


# Batches of records: a few long elements cross a shuffle in less time than many short ones.

# A batch ends when it is this long; a longer record is alone in its batch.
_BATCH_BYTES = 4_000_000

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_by_split_decoder = MsgpackDecoder(dict[str, list[bytes]])
_decoder = MsgpackDecoder(list[bytes])
_record_decoder = MsgpackDecoder(Record)


class RecordBatcher:
    """Batches records with their hashes, in the order in which they come."""

    def __init__(self) -> None:
        # {split: hash + encoded record of each}
        self._values: dict[str, list[bytes]] = {}
        self._num_bytes = 0

    def add(self, record: Record, *, example_hash: bytes) -> Iterator[bytes]:
        """Adds a record; yields a batch as soon as one is long enough."""
        # With the hash in front, sorting the bytes sorts the examples.
        value = example_hash + _encoder.encode(record)
        self._values.setdefault(record.split, []).append(value)
        self._num_bytes += len(value)
        if self._num_bytes >= _BATCH_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[bytes]:
        """Yields a batch of the records that are left, if there are any."""
        if self._values:
            yield _encoder.encode(self._values)
        self._values, self._num_bytes = {}, 0


def decode_batch(batch: bytes) -> Iterator[Record]:
    """Yields the records of a batch."""
    for values in _by_split_decoder.decode(batch).values():
        for value in values:
            yield _record_decoder.decode(value[HASH_BYTES:])


def assign_shards(batch: bytes, plan: ShardPlan) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Divides a batch by the records' shards: yields `((split, shard), batch of its records)`."""
    for split, values in _by_split_decoder.decode(batch).items():
        counters.sharded.add(len(values))
        shards: dict[int, list[bytes]] = {}
        for value in values:
            index = shard_index(value[:HASH_BYTES], num_shards=plan.num_shards[split])
            shards.setdefault(index, []).append(value)
        for index, found in shards.items():
            yield (split, index), _encoder.encode(found)


def merge_batches(batches: Iterable[bytes]) -> list[bytes]:
    """Returns `hash + encoded record` of each record in a shard's batches, in order."""
    return sorted(value for batch in batches for value in _decoder.decode(batch))
