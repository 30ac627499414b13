"""The launcher of the Flex Template: turns a template's parameters into a command line.

Dataflow starts it as `python launcher.py --key=value ...` with the template's own parameters and
with flags of Beam's such as `--template_location`. For Dataflow, a launcher that writes no job has
failed. So if a build has nothing to do (`if_changed`), it writes a job that does nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import GoogleCloudOptions

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Key, flag_name, keys_of, named
from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.cli.flags import flags_of
from shardbeam.pipelines.cli.logging import write_error
from shardbeam.pipelines.cli.main import main
from shardbeam.pipelines.failures import RunError, UsageError
from shardbeam.pipelines.runners.options import (
    DATAFLOW_RUNNER,
    beam_parser,
    make_options,
    make_runner,
)
from shardbeam.transforms.storage.find import storage_for

# Flags that mean nothing to a launcher, which only writes the job.
_LEFT_OUT = ("wait", "json", "log_format", "verbose")
_URI = r"^[a-z][a-z0-9+.-]*://.+$"
_SWITCH = r"^(true|false)$"
# {metavar: regular expression of the values}
_PATTERNS = {
    "DIR": _URI,
    "FILE": _URI,
    "PREVIOUS": _URI,
    "FORMAT": r"^[a-z0-9-]+$",
    "N": r"^[1-9][0-9]*$",
    "X.Y.Z": r"^[0-9]+\.[0-9]+\.[0-9]+$",
    "NAME=FRACTION,...": r"^[^=,]+=[0-9.]+(,[^=,]+=[0-9.]+)*$",
    "KEY=VALUE": r"^[^=]+=",
}
_ANYTHING = r"^.+$"
_EMPTY_JOB = "shardbeam-nothing-to-do"


class _Target(msgspec.Struct):
    """Parameters that become words of the command line: one of them must be given."""

    config: Annotated[
        str,
        named("the config file of the dataset (YAML). Either this or a format", metavar="FILE"),
    ]
    format: Annotated[
        str,
        named("the format of the images and annotations, without a config file", metavar="FORMAT"),
    ]


class _Workers(msgspec.Struct):
    """The parameter that is always required: a flag of Beam's."""

    sdk_container_image: Annotated[
        str, named("the container image of the workers: the template's own")
    ]


def launch(arguments: Sequence[str]) -> int:
    """Runs `shardbeam build` as a template's parameters say.

    Args:
        arguments: `--key=value` each.

    Returns:
        The exit code.
    """
    try:
        words = command_line(arguments)
        code = main(words)
        if code == 0:
            _write_empty_job(words)
    except (UsageError, RunError) as error:
        write_error(str(error))
        return error.exit_code
    return code


def _write_empty_job(words: Sequence[str]) -> None:
    """Writes a job that does nothing, if Dataflow waits for a job and none was written."""
    # Imported here: the clients of Dataflow take a while, and the command has them by now.
    from shardbeam.pipelines.runners.dataflow import submit_job

    arguments = parse_arguments(words)
    assert isinstance(arguments, BuildArguments)
    options = make_options(arguments.beam_options)
    google = options.view_as(GoogleCloudOptions)
    template = google.template_location
    if not template or storage_for(template).stat(template) is not None:
        return
    if not google.job_name:
        google.job_name = _EMPTY_JOB
    runner = make_runner(options)
    pipeline = beam.Pipeline(runner=runner, options=options)
    # A graph must not be empty.
    _ = pipeline | "NothingToDo" >> beam.Impulse()
    submit_job(pipeline, runner=runner, options=options)


def command_line(arguments: Sequence[str]) -> list[str]:
    """Translates a template's parameters.

    `config` and `format` become the word after `build`. Our flags get their spelling (`if_changed`
    becomes `--if-changed`); a repeatable one takes a JSON list or one value. Switches, including
    Beam's, are `true` or `false`. Everything else stays as it is.

    Raises:
        UsageError: There is neither a config nor a format, or both, or a value is wrong.
    """
    ours = _flags()
    switches = {
        flag
        for action in beam_parser()._actions
        if action.nargs == 0
        for flag in action.option_strings
    }
    targets = []
    flags = [f"--runner={DATAFLOW_RUNNER}"]
    for argument in arguments:
        flag, _, value = argument.partition("=")
        name = flag.removeprefix("--")
        if name in keys_of(_Target):
            targets.append(value)
        elif name in ours and ours[name].switch:
            flags += _switch(flag_name(name), value)
        elif name in ours:
            flags += _spell(ours[name], value)
        elif flag in switches and value:
            flags += _switch(flag, value)
        else:
            flags.append(argument)
    if len(targets) != 1:
        names = " or ".join(keys_of(_Target))
        raise UsageError(f"expected the parameter {names}, and only one of them")
    return ["build", *targets, *flags]


def _switch(flag: str, value: str) -> list[str]:
    if value not in ("true", "false"):
        raise UsageError(f"{flag}: expected true or false, got {value!r}")
    return [flag] if value == "true" else []


def _spell(key: Key, value: str) -> list[str]:
    flag = flag_name(key.name)
    items = [value]
    if key.repeatable and value.startswith("["):
        try:
            items = JsonDecoder(list[str]).decode(value)
        except msgspec.DecodeError as error:
            raise UsageError(f"{flag}: expected a JSON list of strings: {error}") from error
    return [f"{flag}={item}" for item in items]


def template_metadata() -> dict[str, Any]:
    """Describes the template's parameters: the content of docker/metadata.json."""
    return {
        "name": "Shardbeam",
        "description": "Builds a sharded TFRecord dataset of image files and their annotations.",
        "parameters": [
            _describe(key)
            for keys in (keys_of(_Target), _flags(), keys_of(_Workers))
            for key in keys.values()
        ],
    }


def _describe(key: Key) -> dict[str, Any]:
    help_text = key.help
    pattern = _SWITCH if key.switch else _PATTERNS.get(key.metavar, _ANYTHING)
    if key.repeatable:
        help_text = f"{help_text}. One value, or a JSON list of several"
        pattern = rf"{pattern}|^\[.*\]$"
    return {
        "name": key.name,
        "label": key.name.replace("_", " ").capitalize(),
        "helpText": f"{help_text[0].upper()}{help_text[1:]}.",
        "isOptional": key.name not in keys_of(_Workers),
        "regexes": [pattern],
    }


def _flags() -> dict[str, Key]:
    """Returns the flags that are parameters of the template."""
    return {
        name: key
        for flags in flags_of(BuildArguments).values()
        for name, key in flags.items()
        if name not in _LEFT_OUT
    }


if __name__ == "__main__":
    # `make template` writes the description.
    json.dump(template_metadata(), sys.stdout, indent=2)
    sys.stdout.write("\n")
