"""Runs a Google Cloud workflow, as far as docs/scheduling/workflow.yaml needs it.

Of the syntax (https://cloud.google.com/workflows/docs/reference/syntax): steps with assign, call,
switch, try and except, raise, return and next; expressions, which read like Python's. Whatever else
a step holds is an error.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
# Called with the function's name and its arguments.
Call = Callable[[str, Json], Any]


class WorkflowError(Exception):
    """What was raised, or what a call failed with.

    Attributes:
        value: The error as a workflow sees it: a map, or a string.
    """

    def __init__(self, value: Any) -> None:  # noqa: ANN401
        super().__init__(value)
        self.value = value


class _Map(Json):
    """A map whose items are read like attributes; one that is not there is a KeyError."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return self[name]


class _Returned(Exception):
    def __init__(self, value: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.value = value


class _Jump(Exception):
    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step


def run_workflow(
    workflow: Json, *, arguments: Json, environment: Mapping[str, str], call: Call
) -> Any:  # noqa: ANN401
    """Runs `main`.

    Args:
        workflow: The parsed file.
        arguments: What it is started with.
        environment: What `sys.get_env` knows.
        call: Answers calls; raises WorkflowError.

    Returns:
        What the workflow returns.

    Raises:
        WorkflowError: It failed.
    """
    main = workflow["main"]
    assert set(main) == {"params", "steps"}
    variables = {
        **{name: _wrap(arguments) for name in main["params"]},
        "sys": types.SimpleNamespace(get_env=environment.__getitem__),
        "map": types.SimpleNamespace(get=lambda value, key: value.get(key)),
        "default": lambda value, other: other if value is None else value,
    }
    try:
        _Run(variables, call).steps(main["steps"])
    except _Returned as returned:
        return returned.value
    return None


class _Run:
    def __init__(self, variables: dict[str, Any], call: Call) -> None:
        self._variables = variables
        self._call = call

    def steps(self, steps: list[Json]) -> None:
        names = [name for step in steps for name in step]
        assert len(set(names)) == len(steps) == len(names)
        at = 0
        while at < len(steps):
            try:
                self.step(dict(steps[at][names[at]]))
                at += 1
            except _Jump as jump:
                if jump.step not in names:
                    raise
                at = names.index(jump.step)

    def step(self, step: Json) -> None:
        if "try" in step:
            handler = step.pop("except")
            try:
                self.step(dict(step.pop("try")))
            except WorkflowError as error:
                self._variables[handler["as"]] = _wrap(error.value)
                self.steps(handler["steps"])
        elif "call" in step:
            answer = self._call(step.pop("call"), self.evaluate(step.pop("args")))
            if "result" in step:
                self._variables[step.pop("result")] = _wrap(answer)
        elif "assign" in step:
            for assignment in step.pop("assign"):
                ((name, value),) = assignment.items()
                self._variables[name] = self.evaluate(value)
        elif "switch" in step:
            for case in step.pop("switch"):
                if self.evaluate(case["condition"]) is True:
                    self.end({key: case[key] for key in case if key != "condition"})
                    break
        self.end(step)

    def end(self, step: Json) -> None:
        if "raise" in step:
            raise WorkflowError(self.evaluate(step["raise"]))
        if "return" in step:
            raise _Returned(self.evaluate(step["return"]))
        if "next" in step:
            raise _Jump(step["next"])
        assert not step, f"not known here: {sorted(step)}"

    def evaluate(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, dict):
            return _Map({key: self.evaluate(item) for key, item in value.items()})
        if isinstance(value, list):
            return [self.evaluate(item) for item in value]
        if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
            return eval(value[2:-1], {"__builtins__": {}}, self._variables)
        return value


def _wrap(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return _Map({key: _wrap(item) for key, item in value.items()})
    return value
