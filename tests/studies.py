"""Studies of records made by hand, and what the tests of their analysis read from them."""

from __future__ import annotations

import json

import pytest
from benchmark.compile import analyze
from benchmark.compile.analysis.load import by_environment, parse_record
from benchmark.compile.analysis.sheets import sheets
from benchmark.compile.analysis.study import Study
from tests.compile_records import small_study, write

ON_CPU = "(cpu, 1 thread, float32, full graph)"


def study_of(records):
    """A study of records that have one environment, without files."""
    parsed = [parse_record(json.dumps(entry), f"{entry['key']}.json") for entry in records]
    (environment,) = by_environment(parsed)
    return Study(environment)


def sheet_of(records, name):
    (found,) = [sheet for sheet in sheets(study_of(records)) if sheet.name == name]
    return found


def dicts(table):
    """The rows of a table by heading; a heading that comes twice keeps its first."""
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings[::-1], cells[::-1], strict=True)) for cells in table.rows]


def cells_of(sheet, first_heading):
    """The rows below a heading as mappings from heading to cell."""
    rows = list(sheet.iter_rows())
    top = next(i for i, cells in enumerate(rows) if cells[0].value == first_heading)
    headings = [cell.value for cell in rows[top] if cell.value is not None]
    found = []
    for cells in rows[top + 1 :]:
        if cells[0].value is None:
            break
        found.append(dict(zip(headings, cells, strict=False)))
    return found


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory):
    """The small study on disk, its records and the folder that the command wrote to."""
    records = small_study()
    folder = write(tmp_path_factory.mktemp("study"), records)
    assert analyze.main([str(folder)]) == 0
    return records, folder / "analysis"
