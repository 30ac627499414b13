from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.internal import cloudpickle_pickler, pickler
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import core, userstate
from apache_beam.typehints import decorators
from apache_beam.utils.counters import CounterFactory

from shardbeam.pipelines.brisk_beam import brisk_beam
from shardbeam.pipelines.flags import runs_here


class _Unlike(beam.DoFn):
    COUNT = userstate.CombiningValueStateSpec("count", combine_fn=sum)

    def process(
        self, element: int, add: int = 1, *others: int, count: object = None, **more: int
    ) -> Iterator[int]:
        yield element + add

    def start_bundle(self, context: object = beam.DoFn.BundleContextParam) -> None:
        del context

    @staticmethod
    def check(first: int, second: int = 2) -> int:
        return first + second


class _Stateful(_Unlike):
    def process(  # type: ignore[override]
        self,
        element: tuple[int, int],
        count: object = beam.DoFn.StateParam(_Unlike.COUNT),
    ) -> Iterator[int]:
        del count
        yield from element


@pytest.fixture
def brisk() -> Iterator[None]:
    with brisk_beam():
        yield


@pytest.mark.parametrize("do_fn", [_Unlike(), _Stateful(), core.CallableWrapperDoFn(len)])
def test_arguments_are_what_beam_finds_also_the_second_time(do_fn: beam.DoFn) -> None:
    methods = [getattr(do_fn, name) for name in dir(do_fn) if not name.startswith("__")]
    functions = [method for method in methods if inspect.isroutine(method)]
    assert len(functions) > 10
    expected = [core.get_function_args_defaults(function) for function in functions]
    with brisk_beam():
        for _ in range(2):
            found = [core.get_function_args_defaults(function) for function in functions]
            assert found == expected


@pytest.mark.usefixtures("brisk")
def test_what_is_given_out_may_be_changed() -> None:
    names, defaults = core.get_function_args_defaults(_Unlike().process)
    assert names == ["element", "add"]
    assert defaults == [1]
    names.clear()
    defaults.clear()
    assert core.get_function_args_defaults(_Unlike().process) == (["element", "add"], [1])
    userstate.get_dofn_specs(_Stateful())[0].clear()
    assert userstate.get_dofn_specs(_Stateful()) == ({_Unlike.COUNT}, set())


@pytest.mark.usefixtures("brisk")
def test_state_is_still_found() -> None:
    for _ in range(2):
        assert userstate.is_stateful_dofn(_Stateful())
        assert not userstate.is_stateful_dofn(_Unlike())
    # A DoFn's class does not tell what it wraps.
    assert not userstate.is_stateful_dofn(core.CallableWrapperDoFn(len))
    assert userstate.is_stateful_dofn(core.CallableWrapperDoFn(_Stateful().process))
    assert not userstate.is_stateful_dofn(core.CallableWrapperDoFn(_Unlike().process))


def test_pickles_are_beams() -> None:
    value = {"key": ["value"] * 1000}
    with brisk_beam():
        light = pickler.dumps(value)
        assert pickler.loads(light) == value
    assert pickler.loads(light) == value
    heavy = pickler.dumps(value)
    with brisk_beam():
        assert pickler.loads(heavy) == value


def test_pickles_that_stay_here_are_not_packed() -> None:
    value = {"key": ["value"] * 1000}
    packed = pickler.dumps(value)
    with brisk_beam(in_memory=True):
        plain = pickler.dumps(value)
        assert pickler.loads(plain) == value
        # Such as one that was made before.
        assert pickler.loads(packed) == value
    assert len(plain) > len(packed)


def test_a_bundle_follows_its_steps_and_waits_for_no_thread() -> None:
    with brisk_beam():
        sampler = statesampler.StateSampler("step", CounterFactory())
    threads = threading.active_count()
    sampler.start()
    assert threading.active_count() == threads
    assert statesampler.get_current_tracker() is sampler
    with sampler.scoped_state("Encode", "process"):
        assert sampler.get_info().state_name.step_name == "Encode"
        assert sampler.get_info().tracked_thread is threading.current_thread()
    sampler.stop_if_still_running()
    sampler.commit_counters()
    assert statesampler.get_current_tracker() is None


def test_type_hints_are_beams_without_the_stack_that_they_come_from() -> None:
    beams = decorators.IOTypeHints.empty().with_output_types(int)
    with brisk_beam():
        hints = decorators.IOTypeHints.empty().with_output_types(int)
    assert hints == beams
    assert any(__file__ in line for line in beams.origin)
    assert hints.origin == []


def test_afterwards_beam_is_as_it_was() -> None:
    replaced = (
        (statesampler, "StateSampler"),
        (userstate, "get_dofn_specs"),
        (core, "get_function_args_defaults"),
        (core, "_check_fn_use_yield_and_return"),
        (decorators, "TRACEBACK_LIMIT"),
        (cloudpickle_pickler, "bz2"),
    )
    before = [getattr(module, name) for module, name in replaced]
    with contextlib.suppress(KeyboardInterrupt), brisk_beam():
        within = [getattr(module, name) for module, name in replaced]
        raise KeyboardInterrupt
    assert not any(old is new for old, new in zip(before, within, strict=True))
    assert [getattr(module, name) for module, name in replaced] == before


# Importing less of it

_LEAN = """\
import logging, sys
logging.basicConfig()
from shardbeam.pipelines.lean_beam import import_lean_beam
import_lean_beam()
assert "google.cloud.bigquery" not in sys.modules and "pymongo" not in sys.modules
"""


def _run(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_beam_runs_without_the_clients() -> None:
    _run(
        f"{_LEAN}import shardbeam.pipelines.run\n"
        "from shardbeam.pipelines.local_runner import LocalRunner\n"
        "from apache_beam.options.pipeline_options import PipelineOptions\n"
        "import apache_beam as beam\n"
        "runner = LocalRunner(options=PipelineOptions([]))\n"
        "with beam.Pipeline(runner=runner) as pipeline:\n"
        "    pipeline | beam.Create([2, 3]) | beam.CombineGlobally(sum) | beam.Map(print)\n"
    )


def test_whoever_needs_the_clients_later_gets_them() -> None:
    _run(
        f"{_LEAN}import shardbeam.transforms.storage.gcs.client\n"
        "import google.cloud.storage, google.cloud.bigquery\n"
        "import shardbeam.pipelines.dataflow, shardbeam.pipelines.dataflow_jobs\n"
        "from apache_beam.io.filesystems import FileSystems\n"
        "assert FileSystems.get_filesystem('gs://bucket/object').scheme() == 'gs'\n"
    )


def test_type_hints_that_need_beartype_get_it() -> None:
    _run(
        f"{_LEAN}from apache_beam.typehints.typehints import is_consistent_with\n"
        "assert 'beartype' not in sys.modules\n"
        "assert is_consistent_with(bool, int) and not is_consistent_with(str, int)\n"
        # beartype raises what Beam takes for a no.
        "assert not is_consistent_with(3, int)\n"
        "from beartype.door import is_subhint\n"
        "assert is_subhint(bool, int)\n"
    )


def test_where_beam_is_imported_it_stays_whole() -> None:
    _run(
        "import apache_beam, sys\nfrom shardbeam.pipelines.lean_beam import import_lean_beam\n"
        "import_lean_beam()\nassert 'google.cloud.bigquery' in sys.modules\n"
        "from apache_beam.io.gcp import bigquery_tools\nassert bigquery_tools.gcp_bigquery\n",
    )


@pytest.mark.parametrize(
    ("words", "here"),
    [
        (["build", "coco"], True),
        (["--json", "plan", "c.yaml"], True),
        (["show", "data"], False),
        (["build", "c.yaml", "--direct_num_workers=2"], True),
        (["build", "c.yaml", "--runner=DataflowRunner"], False),
        (["--runner", "FlinkRunner", "build", "c.yaml"], False),
    ],
)
def test_who_runs_here(words: list[str], here: bool) -> None:
    assert runs_here(words) is here
