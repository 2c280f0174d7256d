"""Sheets to one .xlsx workbook; text stays text, whatever it starts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.compile.analysis.tables import LEGEND, Cell, Column, Sheet, Table
from gnnprof._files import write_atomically
from gnnprof._tables import NOT_MEASURED

MOST_CHARACTERS = 32_767
"""What a cell of a workbook can hold."""

_WIDEST = 60
_WRAPPED = 110
_TONES: Mapping[str, Mapping[str, str]] = {
    "better": {"bg_color": "#C6E7CE", "font_color": "#0B4A1E"},
    "worse": {"bg_color": "#F7CFC9", "font_color": "#7A160B"},
    "void": {"bg_color": "#E7E9EC", "font_color": "#4A525B"},
    "failed": {"bg_color": "#FBE7A8", "font_color": "#5C4300"},
}


def write_workbook(path: Path, sheets: Sequence[Sheet], *, overwrite: bool = False) -> Path:
    """Write the workbook, whole or not at all.

    Args:
        path: Where it shall be.
        sheets: Its sheets.
        overwrite: Whether to replace an earlier file.

    Raises:
        ModuleNotFoundError: If XlsxWriter is not installed.
        FileExistsError: If there is a file and `overwrite` is False.
    """
    try:
        import xlsxwriter
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'the workbook needs XlsxWriter; install it with: pip install "gnnprof[bench]"'
        ) from None

    def write(temporary: Path) -> None:
        # No name of a model may become a formula, a link or a number.
        options = dict.fromkeys(
            ("strings_to_formulas", "strings_to_urls", "strings_to_numbers"), False
        )
        with xlsxwriter.Workbook(str(temporary), options) as book:
            formats = _Formats(book)
            for sheet in sheets:
                _SheetWriter(book.add_worksheet(sheet.name), formats).write(sheet)

    return write_atomically(path, write, overwrite=overwrite)


class _Formats:
    """The formats of a workbook, each made once."""

    def __init__(self, book: Any) -> None:
        self._book = book
        self._made: dict[tuple[object, ...], Any] = {}

    def of(self, tone: str | None = None, *, number: str = "General", **more: object) -> Any:
        key = (tone, number, *sorted(more.items()))
        if key not in self._made:
            properties = {"num_format": number, **more, **_TONES.get(tone or "", {})}
            self._made[key] = self._book.add_format(properties)
        return self._made[key]


class _SheetWriter:
    """Writes one sheet from the top down."""

    def __init__(self, place: Any, formats: _Formats) -> None:
        self._place = place
        self._formats = formats
        self._row = 0

    def write(self, sheet: Sheet) -> None:
        self._line(sheet.heading, bold=True, font_size=12)
        for note in sheet.notes:
            self._line(note)
        for column, (tone, meaning) in enumerate(LEGEND.items()):
            self._text(self._row, column, meaning, self._formats.of(tone))
        self._text(self._row, len(LEGEND), "no colour: undecided", self._formats.of())
        self._row += 2
        for table in sheet.tables:
            self._table(table, only=len(sheet.tables) == 1)
        self._widths(sheet.tables)

    def _line(self, text: str, **properties: Any) -> None:
        self._text(self._row, 0, text, self._formats.of(**properties))
        self._row += 1

    def _text(self, row: int, column: int, text: str, form: Any) -> None:
        # A surrogate, from a file name that is not UTF-8, could not be written.
        text = text.encode("utf-8", "replace").decode("utf-8")
        if len(text) > MOST_CHARACTERS:
            text = text[: MOST_CHARACTERS - 4] + " ..."
        self._place.write_string(row, column, text, form)

    def _table(self, table: Table, *, only: bool) -> None:
        self._line(table.title, bold=True)
        if not table.rows:
            self._text(self._row, 0, table.empty, self._formats.of("void"))
            self._row += 2
            return
        top = self._row
        heading = self._formats.of(bold=True, bottom=1, text_wrap=True, valign="top")
        for place, column in enumerate(table.columns):
            self._text(top, place, column.heading, heading)
        for cells in table.rows:
            self._row += 1
            for place, (column, cell) in enumerate(zip(table.columns, cells, strict=True)):
                self._cell(place, column, cell)
        if only:
            self._place.freeze_panes(top + 1, 3)
            self._place.autofilter(top, 0, self._row, len(table.columns) - 1)
        self._row += 2

    def _cell(self, place: int, column: Column, cell: Cell) -> None:
        if cell.value is None:
            self._text(self._row, place, NOT_MEASURED, self._formats.of("void", align="right"))
        elif isinstance(cell.value, str):
            wrap: dict[str, Any] = (
                {"text_wrap": True, "valign": "top"} if _is_prose(column, cell) else {}
            )
            self._text(self._row, place, cell.value, self._formats.of(cell.tone, **wrap))
        else:
            form = self._formats.of(cell.tone, number=_number_format(column))
            self._place.write_number(self._row, place, cell.value, form)

    def _widths(self, tables: Sequence[Table]) -> None:
        widths: dict[int, int] = {}
        for table in tables:
            for place, column in enumerate(table.columns):
                cells = [cells[place] for cells in table.rows]
                prose = any(_is_prose(column, cell) for cell in cells)
                longest = max([len(column.text(cell)) for cell in cells] or [0])
                needed = _WRAPPED if prose else min(max(longest + 2, 12), _WIDEST)
                widths[place] = max(widths.get(place, 0), needed)
        for place, width in widths.items():
            self._place.set_column(place, place, width)


def _is_prose(column: Column, cell: Cell) -> bool:
    return column.heading == "Answer" and isinstance(cell.value, str)


def _number_format(column: Column) -> str:
    if column.digits is None:
        return "#,##0"
    if column.is_tiny:
        return "0.00E+00"
    return "#,##0" + ("." + "0" * column.digits if column.digits else "")
