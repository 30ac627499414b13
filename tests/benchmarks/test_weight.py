"""The count of lines and of code that runs."""

from __future__ import annotations

import threading

from benchmarks.weight import code_run, count_lines, is_function
from shardbeam.transforms.core.sharding import example_hash, shard_index


def test_lines_are_counted_once() -> None:
    lines = count_lines()
    assert {"configs", "pipelines", "transforms", "transforms/core", "tests"} <= set(lines)
    assert lines["shardbeam"] < 200 < lines["configs"]


def test_functions_are_counted_in_all_threads() -> None:
    def run() -> None:
        thread = threading.Thread(target=shard_index, args=(b"12345678",), kwargs={"num_shards": 2})
        thread.start()
        thread.join()
        example_hash(seed=0, source="a", key="b")

    names = {code.co_name for code in code_run(run) if is_function(code)}
    assert {"shard_index", "example_hash"} <= names
