"""A build without Beam, with the real lease, staging and commit."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import io
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.pipelines.failures import RunError, UsageError
from shardbeam.pipelines.output_folder import hold_output
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.versions import Inputs
from shardbeam.transforms.commit.commit import CommitSettings, finish, gate
from shardbeam.transforms.commit.moves import (
    CommitBatch,
    check_moved,
    clear,
    end_commit,
    move,
)
from shardbeam.transforms.commit.runs import RunSettings
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.input_counts import InputCounts, ListingSummary
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.encode.schema import EncoderSettings
from shardbeam.transforms.shards.reuse import copy_shard
from shardbeam.transforms.shards.shard_records import find_record
from shardbeam.transforms.shards.writer import Shard, ShardSettings, create_file
from shardbeam.transforms.staging import object_lease
from shardbeam.transforms.staging.lease import Lease, LeaseError
from shardbeam.transforms.staging.object_lease import ObjectLease
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import find
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_dataset, make_shard_result
from tests.support.shards import statistics_of
from tests.writers.world import OUTPUT, Run, World

PREVIOUS = "gs://bucket/previous"
COMMITTED, CURRENT, REFUSED = "committed", "current", "refused"
_LABEL_MAP = make_label_map({"cat": 1})
_ENCODER = EncoderSettings(kinds=frozenset())
# Renewals are steps of a build here: no thread comes between.
_NEVER_S = 1e6
_run_numbers = itertools.count()


class Command(NamedTuple):
    """The settings of a run.

    Attributes:
        plan: Its config, of which there are two or three: the bytes of its shards.
        shards: How many shards it writes.
        overwrite: Whether it may replace a dataset.
        previous: The dataset whose shards it copies; empty for none.
        output: The dataset's folder.
    """

    plan: str = "p"
    shards: int = 1
    overwrite: bool = False
    previous: str = ""
    output: str = OUTPUT


@contextlib.contextmanager
def in_world(world: World) -> Iterator[None]:
    """Makes `gs://` mean a world's bucket, and its clock that of all leases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "_storage_by_scheme", lambda scheme: world.storage)
        lease = functools.partial(ObjectLease, clock=world.clock, renew_s=_NEVER_S)
        patch.setattr(object_lease, "ObjectLease", lease)
        if world.without == "lease check":
            patch.setattr(Staging, "check_lease", lambda staging: None)
        if world.without == "fence":
            patch.setattr(Staging, "is_scratch_of_others", lambda staging, path: False)
        yield


def build(run: Run, *, command: Command) -> str:
    """Runs a command to its end.

    Returns:
        How it ended.
    """
    number = next(_run_numbers)
    started = datetime.datetime(2026, 1, 2, microsecond=number % 1_000_000)
    plan = _plan(command)
    inputs = Inputs(plan, list_images=ListingSummary)
    try:
        lease, found = hold_output(
            plan,
            inputs=inputs,
            started=started,
            overwrite=command.overwrite,
            if_changed=False,
            runner="LocalRunner",
        )
        run.clean_up.append(lease.leave)
        with lease:
            if found.current is not None:
                if found.left is not None:
                    msgspec.structs.replace(found.left, lease=lease.claim()).clear()
                return CURRENT
            _commit(plan, command=command, lease=lease, run_id=f"{started:%Y%m%dT%H%M%S.%fZ}")
    except (LeaseError, RunError, UsageError, InputError) as error:
        return f"{REFUSED}: {error}"
    return COMMITTED


def _commit(plan: Plan, *, command: Command, lease: Lease, run_id: str) -> None:
    staging = Staging(output=plan.output, plan=plan.digest, run_id=run_id, lease=lease.claim())
    settings = CommitSettings(
        dataset=plan.dataset,
        run=RunSettings(
            started_at="2026-01-02T03:04:05+00:00",
            runner="LocalRunner",
            annotation_files=(),
            previous=command.previous,
        ),
        staging=staging,
    )
    shards = [
        _write(index, command=command, plan=plan, staging=staging)
        for index in range(command.shards)
    ]
    _renew(lease)
    inputs = InputCounts(
        listing=ListingSummary(files={"train": len(shards)}),
        splits={"train": SplitOutcome(listed=len(shards), images=len(shards))},
    )
    statistics = statistics_of(*shards)
    batches = gate(inputs, shards, [], _LABEL_MAP, settings=settings, statistics=statistics)
    # As if each file went to another worker.
    moves = [CommitBatch((one,)) for batch in batches for one in batch.moves]
    deletes = [CommitBatch(deletes=(old,)) for batch in batches for old in batch.deletes]
    for one in (*moves, *deletes):
        move(one, staging=staging)
    moved = [check_moved(one, (), staging=staging) for one in moves]
    _renew(lease)
    done = finish(inputs, shards, [], _LABEL_MAP, moved, settings=settings, statistics=statistics)
    for one in moves:
        clear(one, done, staging=staging)
    end_commit(done, staging=staging)


def _renew(lease: Lease) -> None:
    assert isinstance(lease, ObjectLease)
    lease.renew()


def _write(index: int, *, command: Command, plan: Plan, staging: Staging) -> ShardResult:
    """Finds a shard, or copies or writes it, as `WriteShards` does."""
    staging.check_lease()
    key = hashlib.sha256(f"{plan.digest} {index} of {command.shards}".encode()).hexdigest()
    finished = staging.find_shard(shard_key=key)
    if finished is not None:
        return finished
    shard = Shard(
        key=key,
        split="train",
        shard_index=index,
        num_shards=command.shards,
        file_name=f"toy-{index}-of-{command.shards}",
        records=[b""],
        label_map=_LABEL_MAP,
    )
    if command.previous:
        record = find_record(command.previous, shard=shard)
        assert record is not None
        copied = ShardSettings(
            splits=("train",), encoder=_ENCODER, staging=staging, previous=command.previous
        )
        return copy_shard(record, shard=shard, settings=copied)
    staged = staging.new_attempt(shard_key=key)
    files = []
    for path, data in (
        (shard.file_name, f"shard {index} of {plan.digest}".encode()),
        (shard.index_path, _index_of(f"{index} of {plan.digest}")),
    ):
        with create_file(staging.uri(staged, path)) as file:
            file.write(data)
        files.append(describe_data(path, data))
    result = make_shard_result(
        *files,
        shard_index=index,
        num_shards=command.shards,
        key=key,
        staged=staged,
        examples=1,
    )
    staging.finish_shard(result)
    return result


def _plan(command: Command) -> Plan:
    unused: Any = None
    return Plan(
        sources=(),
        objects=False,
        inputs=(),
        join=unused,
        encoder=unused,
        dataset=make_dataset(config={"name": "toy", "plan": command.plan}),
        output=command.output,
        output_template=command.output,
        latest="",
        num_shards=command.shards,
        shard_size_bytes=1,
        digest=hashlib.sha256(f"{command.plan} {command.shards}".encode()).hexdigest(),
    )


def play_alone(world: World, command: Command, *, until: str = "") -> str:
    """Runs a command while no other run is there.

    Args:
        world: The world.
        command: The command.
        until: It is killed as soon as there is an object of this name; never where empty.

    Returns:
        How it ended.
    """

    def choose(world: World, run: Run) -> tuple[str, Run]:
        return "kill" if until in world.objects else "", run

    run = Run("alone", world=world, work=functools.partial(build, command=command))
    world.play([run], choose=choose)
    assert not run.error, run.error
    return run.end


@functools.cache
def _index_of(shard: str) -> bytes:
    """Makes an index that says nothing about Examples, as one of another version."""
    file = io.BytesIO()
    parquet.write_table(pa.table({"shard": [shard]}), file)
    return file.getvalue()
