"""The HTML page: what it says, that names stay text, and what Chromium makes of it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest
import torch
from tests import browser
from tests.profiles import (
    BACKWARD_TIME,
    FORWARD,
    FORWARD_TIME,
    MS,
    row,
    with_backward,
    with_device_time,
    with_work,
)

from gnnprof import Profiler, _figures, _html
from gnnprof._html import notebook_html, page
from gnnprof._tree import sums, tree

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=document.title='hacked'>",
    "<!--<script>",
    "'\"><b onmouseover=alert(1)>",
    "&lt;b&gt; \\u003c ${x} $title",
)


def summary(**more):
    return {"model": "Net", "total_time": FORWARD_TIME, "coverage": 1.0, **more}


def training():
    """Rows and summary of a profile in which everything was measured."""
    rows = with_device_time(with_work(with_backward()))
    return rows, summary(
        total_time=FORWARD_TIME + BACKWARD_TIME,
        title="Net, training",
        environment={"torch": "2.13.0", "threads": 1},
        overhead={"markers": 34, "start_time": 0.002, "stop_time": 0.0005, "ratio": 1.07},
        limits={
            "bandwidth": 10e9,
            "cache_bandwidth": 30e9,
            "flop_rate": 50e9,
            "noise": 0.03,
            "device": "cpu",
            "dtype": "float32",
        },
        peaks={"memory": 3 * 2**20, "memory_row": "convs.0 / propagate / message"},
        trace_path="net-trace.json",
        notes=["Not measured: 2 calls on other threads"],
    )


class Document(HTMLParser):
    """Every start tag with its attributes, the text, and the scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        kinds = {"script": self.scripts, "style": self.styles}
        kinds.get(self._inside, self.words).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(word.strip() for word in self.words if word.strip())

    @property
    def data(self):
        return json.loads(self.scripts[0])


# --- what the page holds ---------------------------------------------------------------------


def test_the_page_loads_nothing():
    document = Document(page(*training()))
    loading = {"src", "srcset", "data", "action", "poster", "background"}
    for tag, attributes in document.tags:
        assert not loading & set(attributes), tag
        assert tag not in {"link", "iframe", "img", "object", "embed", "base", "form"}
    assert [a["href"] for a in document.all("a")] == ["net-trace.json"]
    assert "url(" not in document.styles[0]
    assert "@import" not in document.styles[0]


def test_the_policy_allows_our_script_and_style_only():
    document = Document(page(*training()))
    (policy,) = [m["content"] for m in document.all("meta") if "http-equiv" in m]

    def digest(text):
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest(document.scripts[1])}'" in policy
    assert f"style-src 'sha256-{digest(document.styles[0])}'" in policy


def test_the_data_adds_up_to_the_total():
    rows, header = training()
    data = Document(page(rows, header)).data
    kinds, values = data["nodes"]["kind"], data["values"]
    owners = [index for index, kind in enumerate(kinds) if kind != "op"]
    found = sum(values["self_cpu_time"][i] + values["self_backward_cpu_time"][i] for i in owners)
    assert found == pytest.approx(header["total_time"], rel=1e-6)
    assert data["total"] == header["total_time"]


def test_every_row_has_its_place_in_the_tree():
    nodes = Document(page(FORWARD, summary())).data["nodes"]
    assert len(nodes["name"]) == len(FORWARD)
    named = {}
    for index, (name, parent) in enumerate(zip(nodes["name"], nodes["parent"], strict=True)):
        assert parent < index
        named[index] = (*named.get(parent, ()), name)
    assert ("Net", "convs", "0", "propagate", "message", "aten::exp") in named.values()
    assert ("loss", "aten::nll_loss") in named.values()
    assert nodes["shared"][nodes["name"].index("head")] == "lin"


def test_figures_are_in_the_page_with_their_units():
    text = Document(page(*training())).text
    for words in (
        "Net, training",
        "Total time 56.000 ms",
        "100.00% of it is in the rows",
        "Forward 20.000 ms",
        "Backward 31.000 ms",
        "Outside 5.000 ms",
        "Costliest row 32.1% convs.0 / propagate / message",  # (6 + 12) of 56
        "Peak memory 3.00 MiB",
        "Not measured: 2 calls on other threads",
        "torch 2.13.0",
        "Markers placed 34",
        "Starting the session 2.000 ms",
        "Stopping the session 500.0 µs",
        "Instrumented step / plain step 1.070",
        "Copy bandwidth 10.00 GB/s",
        "Matmul rate 50.00 GFLOP/s",
        "Copy bandwidth in cache 30.00 GB/s",
        "Noise of the samples ± 3.0%",
        "Measured on cpu float32",
    ):
        assert words in text


def test_what_was_not_measured_says_so():
    text = Document(page(FORWARD, summary())).text
    for words in (
        "Backward n/a no backward ran",
        "Peak memory n/a memory was not recorded",
        "Device time n/a: no accelerator in the profile (use_cuda=True)",
        "Memory n/a: not asked for (profile_memory=True)",
        "FLOPs and bytes moved n/a: not asked for (counts=True)",
        "Overhead n/a",
        "Markers placed n/a",
        "Copy bandwidth n/a",
        "environment n/a",
        "n/a: no Chrome trace was written",
    ):
        assert words in text


def test_nothing_is_missing_where_all_was_measured():
    rows = tuple(
        row(None, None, "outside", self_ms=1, **dict.fromkeys(keys, 1))
        for keys in [
            ("self_backward_cpu_time", "self_device_time", "self_cpu_memory", "bytes_moved")
        ]
    )
    text = Document(page(rows, summary(overhead={"ratio": 1.0}))).text
    assert "Not measured Everything was measured" in text


def test_columns_are_those_that_were_measured():
    def keys(rows):
        return {column["key"] for column in Document(page(rows, summary())).data["columns"]}

    assert keys(()) == {"calls", "self_cpu_time"}
    assert keys(FORWARD) == {"calls", "self_cpu_time", "cpu_time"}
    assert keys(with_backward()) == keys(FORWARD) | {
        "self_backward_cpu_time",
        "backward_cpu_time",
        "backward_calls",
    }
    assert {"peak_memory", "flops", "intensity", "bound"} <= keys(with_work(FORWARD))


def test_a_huge_profile_loses_its_cheapest_ops_and_says_so(monkeypatch):
    monkeypatch.setattr(_html, "MOST_OPS", 2)
    document = Document(page(FORWARD, summary()))
    ops = [
        name
        for name, kind in zip(*(document.data["nodes"][k] for k in ("name", "kind")), strict=True)
        if kind == "op"
    ]
    assert ops == ["aten::mul", "aten::addmm"]  # 4 and 5 ms
    assert "The 5 op rows with the least self time are left out" in document.text


def test_a_page_of_a_real_model_is_small():
    nn = pytest.importorskip("torch_geometric.nn")
    model = nn.GAT(16, 8, num_layers=3, out_channels=7, heads=2)
    x, edge_index = torch.randn(20, 16), torch.randint(0, 20, (2, 60))
    with Profiler(model) as prof:
        model(x, edge_index)
    text = page(prof.rows, summary(model="GAT", total_time=prof.total_time, coverage=prof.coverage))
    assert len(text.encode()) < 300_000
    names = Document(text).data["nodes"]["name"]
    assert names.count("message") == 3


# --- names are text --------------------------------------------------------------------------


def hostile_page(**more):
    rows = [
        row("", HOSTILE[0], self_ms=1, total_ms=5),
        *(row(f"layer{i}", name, self_ms=1) for i, name in enumerate(HOSTILE)),
        row("layer0", HOSTILE[0], None, HOSTILE[1], self_ms=0.5),
    ]
    environment = {HOSTILE[1]: HOSTILE[1]}
    header = summary(model=HOSTILE[1], title=HOSTILE[1], environment=environment, notes=HOSTILE)
    return page(rows, {**header, **more})


def test_hostile_names_are_inert():
    plain, hostile = Document(page(FORWARD, summary())), Document(hostile_page())
    assert len(hostile.all("script")) == len(plain.all("script")) == 2
    assert hostile.all("img") == []
    assert {tag for tag, _ in hostile.tags} == {tag for tag, _ in plain.tags}
    assert not any(name.startswith("on") for _, attrs in hostile.tags for name in attrs)
    assert [name for name in hostile.data["nodes"]["module"] if name][1:-1] == list(HOSTILE)
    assert HOSTILE[4] in hostile.text  # what looks like an entity or a placeholder stays as it is


def test_no_name_can_end_the_script_element():
    data = hostile_page().split('id="profile">')[1].split("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["nodes"]["name"][0] == HOSTILE[1]


@pytest.mark.parametrize(
    ("path", "href"),
    [
        ("trace.json", "trace.json"),
        ("run 1/trace#2?.json", "run%201/trace%232%3F.json"),
        ("javascript:alert(1)", "javascript%3Aalert%281%29"),
        ("/data/trace.json", "file:///data/trace.json"),
        ("bad\udcff.json", "bad%FF.json"),
    ],
)
def test_the_trace_link_is_a_file_and_nothing_else(path, href):
    document = Document(page(FORWARD, summary(trace_path=path)))
    assert [a["href"] for a in document.all("a")] == [href]
    page(FORWARD, summary(trace_path=path)).encode("utf-8")


# --- notebooks -------------------------------------------------------------------------------


def cells(text):
    """Rows of a table as lists of cells."""
    rows = re.findall("<tr>(.*?)</tr>", text)
    return [[html.unescape(c) for c in re.findall("<t[hd][^>]*>(.*?)</t[hd]>", r)] for r in rows]


def test_the_notebook_table_is_the_tree_of_modules_and_phases():
    rows, header = training()
    table = cells(notebook_html(rows, header))
    assert table[0] == [
        "Row",
        "Self [%]",
        "With nested [%]",
        "Calls",
        "Self forward [ms]",
        "Self backward [ms]",
        "Self forward, device [ms]",
        "Self backward, device [ms]",
        "Peak [MiB]",
        "Of the limit [%]",
        "Bound by",
    ]
    percent_calls_ms = [cells_of_row[:6] for cells_of_row in table]
    assert percent_calls_ms[1] == ["Net (Net)", "5.4", "89.3", "2", "1.000", "2.000"]  # 50 of 56
    assert percent_calls_ms[4] == ["      [propagate]", "3.6", "44.6", "2", "2.000", "0.000"]
    assert table[4][6:] == ["2.000", "0.000", "1.00", "40.0", "memory"]
    assert percent_calls_ms[-2] == ["loss", "5.4", "5.4", "2", "2.000", "1.000"]
    assert table[-2][6:] == ["0.000", "0.000", "n/a", "n/a", "n/a"]
    assert len(table) == 1 + sum(entry.op is None for entry in rows)


def test_the_notebook_table_keeps_the_costliest_and_counts_the_rest():
    text = notebook_html(FORWARD, summary(), top=3)
    assert [r[0].strip() for r in cells(text)[1:]] == [
        "Net (Net)",
        "convs (ModuleList)",
        "0 (GATConv)",
    ]
    assert "7 rows with less time or deeper in the tree are left out." in text
    shallow = cells(notebook_html(FORWARD, summary(), depth=0))
    assert [r[0] for r in shallow[1:]] == ["Net (Net)", "loss", "outside"]


def test_the_notebook_table_has_no_script_and_no_markup_from_names():
    rows = [row("", name, self_ms=1) for name in HOSTILE]
    document = Document(notebook_html(rows, summary(model=HOSTILE[1])))
    assert {tag for tag, _ in document.tags} <= {
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert HOSTILE[0] in document.text


# --- figures and sums ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (None, _figures.TIME, "n/a"),
        (0.0, _figures.TIME, "0.0 µs"),
        (12e-6, _figures.TIME, "12.0 µs"),
        (1.5, _figures.TIME, "1,500.000 ms"),
        (250.0, _figures.TIME, "250.000 s"),
        (-3 * 2**20, _figures.BYTES, "-3.00 MiB"),
        (512, _figures.BYTES, "512 B"),
        (2.5e9, _figures.FLOPS, "2,500.000 MFLOP"),
        (7, _figures.COUNT, "7"),
    ],
)
def test_numbers_carry_the_unit_they_are_well_read_in(value, units, text):
    assert _figures.with_unit(value, units) == text


def test_rates_are_work_over_the_total_forward_time():
    host = row("lin", "Linear", self_ms=1, total_ms=2, flops=6_000, bytes_moved=3_000)
    assert _figures.intensity(host) == 2.0
    assert _figures.flop_rate(host) == pytest.approx(3e6)
    assert _figures.byte_rate(host) == pytest.approx(1.5e6)
    device = row("lin", "Linear", self_ms=1, device_time=1e-3, flops=6_000, bytes_moved=0)
    assert _figures.flop_rate(device) == pytest.approx(6e6)
    assert _figures.intensity(device) is None
    assert _figures.flop_rate(row("lin", "Linear", self_ms=1)) is None
    assert _figures.flop_rate(row("lin", "Linear", self_ms=0, flops=5)) is None


def test_sums_of_the_tree_are_the_rows_below():
    nodes = tree(FORWARD, "Net")
    totals = sums(nodes, lambda entry: entry.self_cpu_time)
    by_name = {node.names: round(totals[node] / MS, 9) for node in nodes}
    assert by_name["Net",] == 20
    assert by_name["Net", "convs"] == 13  # never called itself
    assert by_name["Net", "convs", "0", "propagate"] == 10
    assert by_name["Net", "convs", "0", "propagate", "message"] == 6
    assert by_name["Net", "head"] == 0  # its figures stand at `lin`
    assert by_name["loss",] == 2


def test_a_second_model_of_the_same_class_is_a_tree_of_its_own():
    rows = (
        row("", "Net", self_ms=1),
        row("lin", "Linear", self_ms=2),
        row("", "Net", self_ms=3),
        row("lin", "Linear", self_ms=4),
    )
    nodes = tree(rows, "Net")
    totals = sums(nodes, lambda entry: entry.self_cpu_time)
    assert [round(totals[n] / MS, 9) for n in nodes if n.parent is None] == [3, 7]


# --- colours ---------------------------------------------------------------------------------


def luminance(colour):
    """Relative luminance of `#rrggbb`, after WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_colour(mode):
    style = Document(page(FORWARD, summary())).styles[0]
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[mode]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    fills = set(colours) - {"text", "muted", "line", "accent", "on-accent", "limit"}
    assert len(fills) == 11
    for fill in fills:
        assert contrast(colours["text"], colours[fill]) >= 4.5, fill
    for ink, ground in (
        ("muted", "card"),
        ("muted", "page"),
        ("accent", "card"),
        ("on-accent", "accent"),
        ("limit", "card"),
    ):
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


# --- in a browser ----------------------------------------------------------------------------

in_chromium = pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium on the PATH")

REPORT = """
<script>
const texts = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent);
const report = {};
function note(name) {
  report[name] = {
    boxes: [...document.querySelectorAll("#icicle g[aria-label]")]
      .map((g) => g.getAttribute("aria-label")),
    shown: texts("#shown")[0], hash: location.hash,
    rows: texts("#table tbody tr td.name button"), heads: texts("#table thead th"),
    selves: texts("#table tbody tr td:nth-child(2)"), points: texts("#roof text"),
    dots: document.querySelectorAll("#roof circle").length, movers: texts(".movers tbody td"),
    tip: document.getElementById("tip").hidden ? null : document.getElementById("tip").textContent,
  };
}
const press = (key, value) =>
  document.querySelector(`[data-key=${key}] [data-value=${value}]`).click();
const box = (name) => [...document.querySelectorAll("#icicle g")]
  .find((g) => g.textContent === name);
const set = (key, value) => {
  const control = document.querySelector(`[data-key=${key}]:not(div)`);
  control.value = value;
  control.dispatchEvent(new Event("input"));
};
const key = (name) =>
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
const over = (g) => g.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 9}));
STEPS
report.ground = getComputedStyle(document.body).backgroundColor;
report.width = document.documentElement.scrollWidth;
const made = document.createElement("pre");
made.id = "report";
made.textContent = JSON.stringify(report);
document.body.append(made);
</script></body>"""


def with_steps(text, steps):
    """The page with a script of ours that works its controls and writes down what is shown.

    The policy, which would refuse that script, is taken out: what names do then is up to escaping.
    """
    text = re.sub("<meta http-equiv[^>]*>", "", text)
    return text.replace("</body>", REPORT.replace("STEPS", steps))


def report_of(opened):
    (written,) = opened.texts('<pre id="report">', "</pre>")
    return json.loads(html.unescape(written))


STEPS = """
note("start");
press("view", "backward"); note("backward");
press("view", "both");
box("0 (GATConv)").dispatchEvent(new MouseEvent("click", {bubbles: true})); note("zoomed");
over(box("message")); note("hovered");
key("Escape"); note("escaped");
set("find", "gatconv"); note("found");
set("kinds", "ops"); set("find", "MUL"); note("ops");
set("kinds", "rows"); set("find", ""); set("depth", "1"); note("shallow");
set("depth", "all");
document.querySelector("#table th.name button").click(); note("tree");
[...document.querySelectorAll("#table th button")][1].click();
[...document.querySelectorAll("#table th button")][1].click(); note("rising");
press("group", "device"); press("time", "device"); note("device");
press("time", "host"); press("group", "memory"); note("memory");
press("group", "work"); note("work");
set("points", "ops"); note("op points");
"""


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """What the page of a training step shows while its controls are worked, in dark colours."""
    file = tmp_path_factory.mktemp("page") / "training.html"
    file.write_text(with_steps(page(*training()), STEPS), encoding="utf-8")
    opened = browser.open_page(file, width=800, dark=True)
    assert opened.console == ()
    return report_of(opened)


@in_chromium
class TestControls:
    def test_the_tree_is_drawn(self, worked):
        assert worked["start"]["shown"] == "56.000 ms · 100.0 % of the total time"
        assert worked["start"]["boxes"][:7] == [
            "whole block: 56.000 ms",
            "Net: 50.000 ms",
            "convs: 32.000 ms",
            "convs.0: 32.000 ms",
            "convs.0 / propagate: 25.000 ms",
            "convs.0 / propagate / message: 18.000 ms",
            "convs.0 / propagate / message / aten::mul: 12.000 ms",
        ]
        assert "loss: 3.000 ms" in worked["start"]["boxes"]

    def test_backward_is_a_switch_away(self, worked):
        assert worked["backward"]["shown"] == "31.000 ms · 55.4 % of the total time"
        assert worked["backward"]["boxes"][1] == "Net: 30.000 ms"
        assert "convs.0 / propagate / message: 12.000 ms" in worked["backward"]["boxes"]
        assert worked["backward"]["hash"] == "#view=backward"
        assert worked["backward"]["selves"][0] == "21.4"  # 12 of 56

    def test_the_device_has_its_own_clock(self, worked):
        assert worked["device"]["shown"] == "50.000 ms · 100.0 % of the device time"
        assert worked["device"]["boxes"][1] == "Net: 50.000 ms"
        assert worked["device"]["selves"][-1] == "36.0"  # (6 + 12) of 50, smallest first
        assert "Self forward, devicems" in worked["device"]["heads"]

    def test_a_click_zooms_and_escape_leaves(self, worked):
        zoomed = worked["zoomed"]
        assert zoomed["shown"] == "32.000 ms · 57.1 % of the total time"
        assert zoomed["boxes"][:4] == worked["start"]["boxes"][:4]  # the way back out
        assert "convs.0 / propagate / aggregate: 5.000 ms" in zoomed["boxes"]
        assert "lin: 15.000 ms" in worked["start"]["boxes"]
        assert "lin: 15.000 ms" not in zoomed["boxes"]
        assert worked["escaped"]["boxes"] == worked["start"]["boxes"]

    def test_hovering_shows_the_figures(self, worked):
        tip = worked["hovered"]["tip"]
        assert "convs.0 / propagate / message" in tip
        assert "Self18.000 ms (32.1 %)" in tip
        assert "Self forward6.000 ms" in tip
        assert "Self backward12.000 ms" in tip
        assert "Bound bymemory" in tip
        assert worked["start"]["tip"] is None

    def test_rows_are_sorted_searched_and_cut(self, worked):
        assert worked["start"]["rows"][:3] == [
            "convs.0 / propagate / message",
            "lin",
            "convs.0",
        ]
        assert worked["found"]["rows"] == [
            "convs.0 / propagate / message",
            "convs.0",
            "convs.0 / propagate / aggregate",
            "convs.0 / propagate",
        ]
        assert worked["ops"]["rows"] == [
            "convs.0 / propagate / message / aten::mul",
            "convs.0 / aten::mul",
        ]
        assert set(worked["shallow"]["rows"]) == {
            "Net",
            "convs",
            "lin",
            "head",
            "loss",
            "outside",
        }
        assert worked["tree"]["rows"][:4] == ["Net", "convs", "0", "propagate"]
        assert worked["rising"]["selves"][0] == "0.0"
        assert worked["rising"]["selves"][-1] == "32.1"

    def test_column_groups_carry_their_units(self, worked):
        assert "Self backwardms" in worked["start"]["heads"]
        assert "PeakMiB" in worked["memory"]["heads"]
        assert "IntensityFLOP/byte" in worked["work"]["heads"]

    def test_the_roofline_has_its_points_and_ceilings(self, worked):
        start = worked["start"]
        assert start["dots"] == 7  # modules and phases that ran; `convs` itself never does
        assert {
            "copy 10.00 GB/s",
            "copy in cache 30.00 GB/s",
            "matmul 50.00 GFLOP/s",
        } <= set(start["points"])
        assert start["movers"] == []
        assert worked["op points"]["dots"] == 5
        assert worked["op points"]["movers"] == [
            "convs.0 / propagate / aten::index_select",
            "2.7",  # 1.5 of 56
            "8.00",
            "40.0",
        ]

    def test_dark_colours_and_narrow_windows_are_honoured(self, worked):
        assert worked["ground"] == "rgb(16, 20, 24)"
        assert worked["width"] <= 800


@in_chromium
def test_the_page_as_written_opens_at_the_address_of_its_state(tmp_path):
    file = tmp_path / "net.html"
    file.write_text(page(*training()), encoding="utf-8")
    opened = browser.open_page(file, "backward")
    assert opened.console == ()  # the policy refuses nothing of ours
    assert "31.000 ms · 55.4 % of the total time" in opened.dom
    assert 'data-value="backward" data-needs="backward" aria-pressed="true"' in opened.dom
    assert len(opened.texts("<g data-node", "</g>")) > 10


@in_chromium
def test_hostile_names_do_nothing_in_a_browser(tmp_path):
    file = tmp_path / "hostile.html"
    steps = """
      const before = document.title;
      set("kinds", "all"); note("all"); over(document.querySelector("#icicle g + g"));
      report.title = document.title === before;
      report.images = document.images.length;
      report.scripts = document.scripts.length;
    """
    file.write_text(with_steps(hostile_page(), steps), encoding="utf-8")
    opened = browser.open_page(file, "view=backward&zoom=999&sort=nothing&group=work")
    assert opened.console == ()
    report = report_of(opened)
    assert report["title"] is True
    assert (report["images"], report["scripts"]) == (0, 3)  # ours, the data, and this test's
    assert HOSTILE[1] in report["all"]["rows"]
    assert report["all"]["shown"] == "6.000 ms · 24.0 % of the total time"  # no such view: forward


@in_chromium
def test_switches_of_what_was_not_measured_are_off(tmp_path):
    file = tmp_path / "forward.html"
    file.write_text(page(FORWARD, summary()), encoding="utf-8")
    opened = browser.open_page(file, "backward")
    assert "25.000 ms · 100.0 % of the total time" in opened.dom
    for value, why, switches in (
        ("backward", "no backward ran in the block", 1),
        ("device", "no accelerator was profiled", 2),
        ("memory", "memory was not asked for", 1),
        ("work", "FLOPs and bytes were not counted", 1),
    ):
        buttons = re.findall(f'<button[^>]*data-value="{value}"[^>]*>', opened.dom)
        assert len(buttons) == switches
        assert all("disabled" in button and f"n/a: {why}" in button for button in buttons)
    assert "<p>n/a: FLOPs and bytes were not counted</p>" in opened.dom
