"""The study in LaTeX and as a page: whole, escaped, and with a mark for every row."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from benchmark.compile.analysis.estimates import Estimate
from benchmark.compile.analysis.latex import escape, latex
from benchmark.compile.analysis.page import page
from benchmark.compile.analysis.plots import Axis, Line, Mark, axis_over, line_plot
from benchmark.compile.analysis.questions import answers
from benchmark.compile.analysis.sheets import sheets
from tests import browser, studies
from tests.compile_records import record, small_study
from tests.studies import ON_CPU, study_of

pytest.importorskip("xlsxwriter")

HOSTILE = "=cmd()<script>alert('x')</script>&${x}"

analyzed = studies.analyzed

# --- LaTeX -----------------------------------------------------------------------------------


def test_latex_is_escaped():
    assert escape("50 % of a_b & {c} #1 $x^2~y\\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$x\textasciicircum{}2\textasciitilde{}y\textbackslash{}"
    )
    assert escape("[1] * <a|b> `c\nd") == (
        r"{[}1{]} {*} \textless{}a\textbar{}b\textgreater{} \textasciigrave{}c d"
    )
    assert escape("a--b---c") == "a-{}-b-{}-{}-c"


def test_latex_tables_are_whole():
    study = study_of([*small_study(), record(model="a & b_c {%}", dataset="[x]\\\\")])
    text = latex(answers(study), sheets(study))
    plain = re.sub(r"\\[\\{}&%_#$]", "", text)
    assert plain.count("{") == plain.count("}")
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) > 10
    assert text.count("\\begin{adjustbox}{max width=\\textwidth") == len(tables)
    for columns, body in tables:
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) >= 2
        for line in lines:
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
    assert text.count("\\paragraph{") == 9
    assert r"a \& b\_c \{\%\}" in text


def test_latex_prints_decided_ratios_bold_and_names_what_is_too_large():
    records = [record(2.0, dataset=f"d{i}") for i in range(70)]
    study = study_of(records)
    text = latex(answers(study), sheets(study))
    assert r"\textbf{2.000}" in text
    assert "% Default: Every case with mode default: 140 rows" in text


def has_latex():
    """Whether pdflatex and the packages of the tables are there."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    styles = [f"{name}.sty" for name in ("adjustbox", "booktabs", "geometry", "textcomp")]
    return all(map(_finds, styles))


def _finds(style):
    return subprocess.run(["kpsewhich", style], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_latex(), reason="no pdflatex with the packages of the tables")
def test_latex_is_typeset_and_no_table_leaves_its_page(tmp_path):
    records = [record(1.5, model="a & b_c {%}", dataset="[x]\\\\"), *small_study()]
    records += [record(2.0, dataset=f"d{i}") for i in range(25)]
    study = study_of(records)
    text = latex(answers(study), sheets(study))
    packages = text.splitlines()[0].removeprefix("% ")
    packages += (
        "\\usepackage[landscape,margin=1cm]{geometry}"  # wide and low: narrow tables overflow
    )
    body = f"\\begin{{document}}\n{text}\\end{{document}}"
    (tmp_path / "a.tex").write_text(f"\\documentclass{{article}}\n{packages}\n{body}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    log = (tmp_path / "a.log").read_text(errors="replace")
    assert "Float too large" not in log
    assert "Missing character" not in log


# --- the page --------------------------------------------------------------------------------


class Document(HTMLParser):
    """Start tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag, **attributes):
        return [a for name, a in self.tags if name == tag and attributes.items() <= a.items()]

    def marks(self, word):
        return [a for a in self.all("g") if word in a["class"].split()]


def test_the_page_loads_nothing(analyzed):
    text = (analyzed[1] / "study.html").read_text(encoding="utf-8")
    document = Document(text)
    for tag, attributes in document.tags:
        assert tag not in {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "a",
        }
        assert not {"src", "href", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    (policy,) = [m["content"] for m in document.all("meta") if "http-equiv" in m]
    style = re.search("<style>(.*?)</style>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';")
    assert f"style-src 'sha256-{digest}'" in policy


def test_every_question_is_answered_on_the_page(analyzed):
    records, out = analyzed
    words = " ".join(Document((out / "study.html").read_text(encoding="utf-8")).words)
    for found in answers(study_of(records)):
        assert found.question in words
        assert all(sentence in words for sentence in found.sentences)


def test_plots_hold_a_mark_for_every_row():
    records = [
        record(2.0),
        record(0.5, model="GAT"),
        record(1.0, model="GIN"),
        record(outcome="oom", model="x"),
    ]
    document = Document(page(study_of(records)))
    # Inference and training (1.2), each once among the speedups and once in the trade-off.
    assert len(document.marks("faster")) == 2 * (1 + 3)
    assert len(document.marks("slower")) == 2 * 1
    assert len(document.marks("undecided")) == 2 * 1
    # Break-even, cold and warm, of the four rows that are faster; memory of six.
    assert len(document.marks("first")) == 2 * 4 + 3
    assert len(document.marks("second")) == 3
    titles = [word for word in document.words if "calls" in word and "cold" in word]
    assert (
        f"PyG GCN on cora-like (stand-in) {ON_CPU}, default, fixes: inference, cold: 2,000 calls"
        in titles
    )


def test_lines_name_what_tells_their_settings_apart():
    document = Document(page(study_of([record(2.0), record(3.0, threads=2)])))
    assert "GCN, cora-like (stand-in), default, 2 threads" in document.words


def test_marks_stand_where_their_figures_are():
    axis = Axis(1.0, 100.0, 200.0, 400.0)
    assert [axis.place(v) for v in (1.0, 10.0, 100.0, 1000.0)] == [200.0, 300.0, 400.0, 400.0]
    assert axis.ticks == [1, 2, 5, 10, 20, 50, 100]
    narrow = axis_over([2.0], 0.0, 10.0)
    assert narrow.low < 2.0 < narrow.high
    assert len(axis_over([1e-3, 1e9], 0, 1).ticks) <= 13
    mark = Mark(Estimate(10.0, 1.0, 100.0), "faster", "about")
    svg = line_plot("t", "u", [Line("n", (mark,))])
    (circle,) = Document(svg).all("circle")
    whisker = next(a for a in Document(svg).all("line") if "class" not in a)
    assert float(circle["cx"]) == pytest.approx((float(whisker["x1"]) + float(whisker["x2"])) / 2)


def test_a_large_study_says_how_many_lines_are_left_out():
    records = [record(2.0, training=None, dataset=f"d{i}") for i in range(153)]
    text = page(study_of(records))
    assert "3 rows more: in the workbook." in text
    assert text.count("3 lines more: in the workbook.") == 2


def test_a_page_without_figures_says_so():
    text = page(study_of([record(outcome="oom")]))
    assert text.count("not measured: no ") == 4
    assert "<svg" not in text


def test_names_stay_text():
    records = [record(2.0, model=HOSTILE, dataset=HOSTILE), record(outcome="crash", model=HOSTILE)]
    text = page(study_of(records))
    assert "<script>" not in text
    document = Document(text)
    assert any(HOSTILE in word for word in document.words)


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium on the PATH")
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_in_a_browser(analyzed, dark):
    opened = browser.open_page(analyzed[1] / "study.html", dark=dark)
    assert opened.console == ()
    assert opened.dom.count("<svg") == 4 + 4 + 1 + 1
    assert "Best mode" in opened.dom
