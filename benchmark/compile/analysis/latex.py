"""Sheets to LaTeX tables; the packages they need stand in the first line of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from benchmark.compile.analysis.questions import Answer
from benchmark.compile.analysis.tables import Cell, Column, Sheet, Table

MOST_COLUMNS = 22
MOST_ROWS = 60
"""A larger table fits on no page; it is named in a comment and stands in the workbook."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # After a line break in a table a bracket or star would be an argument of the break.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "`": r"\textasciigrave{}",
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; line breaks and control characters become spaces."""
    plain = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)
    plain = plain.encode("utf-8", "replace").decode("utf-8")
    escaped = "".join(_SPECIAL.get(character, character) for character in plain)
    return re.sub("-(?=-)", "-{}", escaped)  # or a ligature would make one dash of two


def latex(answers: Sequence[Answer], sheets: Sequence[Sheet]) -> str:
    """Return the answers as paragraphs and the tables as floats.

    A ratio whose interval excludes 1 is bold. Columns that are alike in all rows stand in the
    caption.
    """
    parts = ["% \\usepackage{adjustbox,booktabs,textcomp} \\usepackage[T1]{fontenc}"]
    for answer in answers:
        parts.append(f"\\paragraph{{{escape(answer.question)}}}")
        parts.extend(escape(sentence) + "\n" for sentence in answer.sentences)
    for number, sheet in enumerate(sheets[1:], start=2):  # the first one holds the answers
        for place, table in enumerate(sheet.tables, start=1):
            parts.extend(_float(sheet, table, f"{number}-{place}"))
    return "\n".join(parts) + "\n"


def _float(sheet: Sheet, table: Table, label: str) -> Iterator[str]:
    alike = {} if len(table.rows) < 2 else _alike(table)
    kept = [place for place in range(len(table.columns)) if place not in alike]
    title = f"{sheet.name}: {table.title}"
    if not table.rows:
        yield f"% {escape(title)}: {escape(table.empty)}"
        return
    if len(kept) > MOST_COLUMNS or len(table.rows) > MOST_ROWS:
        size = f"{len(table.rows)} rows, {len(kept)} columns"
        yield f"% {escape(title)}: {size}, in the workbook only"
        return
    columns = [table.columns[place] for place in kept]
    constants = [f"{column.heading} {column.text(cell)}" for column, cell in alike.values()]
    caption = ". ".join(filter(None, (title, ", ".join(constants))))
    yield "\\begin{table}"
    yield f"\\caption{{{escape(caption)}.}}\\label{{tab:compile-{label}}}"
    # Made smaller where it would leave the page, never larger; the rest is for the caption.
    yield "\\begin{adjustbox}{max width=\\textwidth, max totalheight=0.85\\textheight, center}"
    yield f"\\begin{{tabular}}{{{''.join(map(_alignment, columns))}}}"
    yield "\\toprule"
    yield " & ".join(escape(column.heading) for column in columns) + r" \\"
    yield "\\midrule"
    for cells in table.rows:
        yield " & ".join(_cell(table.columns[place], cells[place]) for place in kept) + r" \\"
    yield "\\bottomrule"
    yield "\\end{tabular}"
    yield "\\end{adjustbox}"
    yield "\\end{table}"


def _alike(table: Table) -> dict[int, tuple[Column, Cell]]:
    """Columns of texts and whole numbers that have one value in all rows."""
    first = table.rows[0]
    return {
        place: (column, first[place])
        for place, column in enumerate(table.columns)
        if column.digits is None and all(cells[place] == first[place] for cells in table.rows)
    }


def _alignment(column: Column) -> str:
    return "l" if column.digits is None else "r"


def _cell(column: Column, cell: Cell) -> str:
    text = column.text(cell)
    return f"\\textbf{{{escape(text)}}}" if cell.tone in ("better", "worse") else escape(text)
