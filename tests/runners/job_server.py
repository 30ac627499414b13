"""Writes the jar of Beam's job server for Flink: `python -m tests.runners.job_server FOLDER`.

Beam publishes a jar with all classes for each version of Flink. This one only names the jars beside
it, which Maven has fetched one by one.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

# Packages of Java that the job server accesses, and that Java closes from version 16 on.
OPENED = tuple(f"java.base/java.{name}" for name in ("util", "lang", "lang.reflect", "net", "time"))
MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
JAR = "job-server.jar"
# The longest line of a manifest, in bytes, without its end:
# https://docs.oracle.com/en/java/javase/17/docs/specs/jar/jar.html#notes-on-manifest-and-signature-files
_LINE_BYTES = 70


def write_job_server(folder: Path) -> Path:
    """Writes an executable jar into a folder of jars; it finds the others by their names."""
    path = folder / JAR
    jars = sorted(jar.name for jar in folder.glob("*.jar") if jar != path)
    headers = {
        "Manifest-Version": "1.0",
        "Main-Class": MAIN,
        "Class-Path": " ".join(jars),
        "Add-Opens": " ".join(OPENED),
    }
    lines = []
    for name, value in headers.items():
        line = f"{name}: {value}"
        while len(line) > _LINE_BYTES:
            lines.append(line[:_LINE_BYTES])
            # A space continues a line.
            line = f" {line[_LINE_BYTES:]}"
        lines.append(line)
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "".join(f"{line}\r\n" for line in lines))
    return path


if __name__ == "__main__":
    write_job_server(Path(sys.argv[1]))
