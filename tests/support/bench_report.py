"""Reads the tables of a report."""

from __future__ import annotations

import re


def tables(report: str) -> list[list[list[str]]]:
    """Parses the Markdown tables of a report: its rows of cells, the headings first."""
    tables = []
    for block in report.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and all(line.startswith("|") and line.endswith("|") for line in lines):
            rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
            assert all(re.fullmatch("-+:?", cell) for cell in rows[1])
            assert len({len(row) for row in rows}) == 1
            tables.append([rows[0], *rows[2:]])
    return tables
