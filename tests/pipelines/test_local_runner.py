from __future__ import annotations

import inspect
from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.transforms import core, userstate

from pipelines import local_runner


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


@pytest.mark.parametrize("do_fn", [_Unlike(), _Stateful(), core.CallableWrapperDoFn(len)])
def test_arguments_are_what_beam_finds_also_the_second_time(do_fn: beam.DoFn) -> None:
    methods = [getattr(do_fn, name) for name in dir(do_fn) if not name.startswith("__")]
    functions = [method for method in methods if inspect.isroutine(method)]
    assert len(functions) > 10
    for _ in range(2):
        for function in functions:
            assert core.get_function_args_defaults(function) == local_runner._inspect_arguments(
                function
            )


def test_what_is_given_out_may_be_changed() -> None:
    names, defaults = core.get_function_args_defaults(_Unlike().process)
    assert names == ["element", "add"]
    assert defaults == [1]
    names.clear()
    defaults.clear()
    assert core.get_function_args_defaults(_Unlike().process) == (["element", "add"], [1])


def test_state_is_still_found() -> None:
    assert userstate.is_stateful_dofn(_Stateful())
    assert not userstate.is_stateful_dofn(_Unlike())
