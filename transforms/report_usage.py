"""Telling Beam how many requests a worker has made, so that whoever started the run can add up."""

from __future__ import annotations

from apache_beam.metrics.metric import Metrics

from shardbeam.transforms.storage.usage import usage_counter

USAGE_NAMESPACE = "storage"
BYTES_RECEIVED = "bytes_received"
BYTES_SENT = "bytes_sent"
REQUESTS = "requests_"


def report_usage() -> None:
    """Counts what this process has asked of object storage since it last reported.

    To be called by a step at its end, in Beam's own thread: Beam does not see what other threads
    count.
    """
    usage = usage_counter.take()
    for kind, count in usage.requests.items():
        Metrics.counter(USAGE_NAMESPACE, f"{REQUESTS}{kind}").inc(count)
    if usage:
        Metrics.counter(USAGE_NAMESPACE, BYTES_RECEIVED).inc(usage.bytes_received)
        Metrics.counter(USAGE_NAMESPACE, BYTES_SENT).inc(usage.bytes_sent)
