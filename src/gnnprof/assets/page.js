"use strict";
// Draws the layer tree, the table and the roofline from the records in #profile. Names come from
// user code: they reach the page through textContent and setAttribute only, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("profile").textContent);
  const { nodes, values, columns, limits } = data;
  const count = nodes.name.length;
  const NOT_MEASURED = "n/a";
  const SELF_KEYS = {
    host: { forward: "self_cpu_time", backward: "self_backward_cpu_time" },
    device: { forward: "self_device_time", backward: "self_backward_device_time" },
  };
  const measured = {
    backward: Boolean(values.self_backward_cpu_time),
    device: Boolean(values.self_device_time),
    memory: columns.some((column) => column.group === "memory"),
    work: columns.some((column) => column.group === "work"),
  };
  const WHY_NOT = {
    backward: "n/a: no backward ran in the block",
    device: "n/a: no accelerator was profiled",
    memory: "n/a: memory was not asked for",
    work: "n/a: FLOPs and bytes were not counted",
  };
  const PAGE_OF_ROWS = 100;

  const element = (id) => document.getElementById(id);
  const isOp = (i) => nodes.kind[i] === "op";

  /** Make an element with attributes and children; text children are text, whatever they hold. */
  function make(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function makeSvg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }

  function fill(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // --- the tree ------------------------------------------------------------------------------

  const children = Array.from({ length: count }, () => []);
  const roots = [];
  const depths = new Array(count);
  const names = new Array(count);
  nodes.parent.forEach((parent, i) => {
    (parent < 0 ? roots : children[parent]).push(i);
    depths[i] = parent < 0 ? 0 : depths[parent] + 1;
    names[i] = fullName(i);
  });
  const deepest = depths.reduce((a, b) => Math.max(a, b), 0);

  /** Dotted module path, then phases and op: `convs.1 / propagate / message / aten::mul`. */
  function fullName(i) {
    const parent = nodes.parent[i];
    if (parent < 0) return nodes.name[i];
    if (nodes.kind[i] !== "module") return `${names[parent]} / ${nodes.name[i]}`;
    return nodes.parent[parent] < 0 ? nodes.name[i] : `${names[parent]}.${nodes.name[i]}`;
  }

  function ancestors(i) {
    const found = [];
    for (let above = nodes.parent[i]; above >= 0; above = nodes.parent[above]) found.unshift(above);
    return found;
  }

  /** What colours a node: the phases of message passing are told apart, all else goes by kind. */
  function colour(i) {
    const phases = ["propagate", "message", "aggregate", "message_and_aggregate", "edge_update"];
    const kind = nodes.kind[i];
    return kind === "phase" && phases.includes(nodes.name[i]) ? nodes.name[i] : kind;
  }

  /** Self time of every node, and the time of its whole subtree, in the chosen view. */
  function timesOf({ view, time }) {
    const keys = SELF_KEYS[time];
    const chosen = ["forward", "backward"].filter((pass) => view === pass || view === "both");
    const self = new Array(count).fill(0);
    for (const pass of chosen) {
      (values[keys[pass]] || []).forEach((seconds, i) => { self[i] += seconds || 0; });
    }
    const total = new Array(count).fill(0);
    for (let i = count - 1; i >= 0; i--) { // children come after their parents
      const ops = children[i].filter(isOp).reduce((sum, op) => sum + total[op], 0);
      total[i] += Math.max(0, self[i] - ops);
      if (nodes.parent[i] >= 0) total[nodes.parent[i]] += total[i];
    }
    const shown = roots.reduce((sum, root) => sum + total[root], 0);
    return { self, total, shown, whole: time === "host" ? data.total : deviceTotal() };
  }

  function deviceTotal() {
    const passes = Object.values(SELF_KEYS.device).map((key) => values[key] || []);
    const owners = nodes.kind.map((_, i) => i).filter((i) => !isOp(i));
    return passes.flatMap((pass) => owners.map((i) => pass[i] || 0)).reduce((a, b) => a + b, 0);
  }

  // --- numbers -------------------------------------------------------------------------------

  const COUNTS = new Intl.NumberFormat("en-US");
  const fixed = (digits) => new Intl.NumberFormat(
    "en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const formats = new Map(columns.map((column) => [column.key, fixed(column.digits || 0)]));
  const PERCENT = fixed(1);
  const RATE = fixed(2);

  function text(column, i) {
    const value = values[column.key][i];
    if (value === null) return NOT_MEASURED;
    return typeof value === "string" ? value : formats.get(column.key).format(value / column.factor);
  }

  function share(seconds, whole) {
    return whole > 0 ? PERCENT.format((100 * seconds) / whole) : NOT_MEASURED;
  }

  const timeColumn = columns.find((column) => column.key === "self_cpu_time");

  function seconds(value) {
    return `${formats.get(timeColumn.key).format(value / timeColumn.factor)} ${timeColumn.unit}`;
  }

  // --- state: the controls, and the address after # ------------------------------------------

  const defaults = {
    view: measured.backward ? "both" : "forward", time: "host", zoom: "-1", group: "time",
    kinds: "rows", depth: "all", find: "", sort: "self", points: "rows",
  };
  const choices = {
    view: measured.backward ? ["forward", "backward", "both"] : ["forward"],
    time: measured.device ? ["host", "device"] : ["host"],
    group: ["time", ...["device", "memory", "work"].filter((group) => measured[group])],
    kinds: ["rows", "ops", "all"],
    points: ["rows", "ops"],
  };
  let state = { ...defaults };
  let allRows = false;

  /** Read `#backward`, or `#view=backward&find=lin`; what does not fit falls back to the default. */
  function readAddress() {
    const hash = location.hash.slice(1);
    const short = ["forward", "backward", "both"].includes(hash);
    const asked = new URLSearchParams(short ? `view=${hash}` : hash);
    state = { ...defaults };
    for (const key of Object.keys(defaults)) {
      const value = asked.get(key);
      if (value !== null && (!choices[key] || choices[key].includes(value))) state[key] = value;
    }
    const zoom = Number(state.zoom);
    if (!Number.isInteger(zoom) || zoom < -1 || zoom >= count) state.zoom = defaults.zoom;
  }

  function change(changes) {
    state = { ...state, ...changes };
    const kept = Object.entries(state).filter(([key, value]) => value !== defaults[key]);
    try {
      history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
    } catch (error) {
      // Inside a sandboxed frame (a notebook) there is no address to keep the state in.
      if (error.name !== "SecurityError") throw error;
    }
    render();
  }

  function bindControls() {
    for (const button of document.querySelectorAll(".switch button")) {
      const { needs, value } = button.dataset;
      if (needs && !measured[needs]) {
        button.disabled = true;
        button.title = WHY_NOT[needs];
      }
      const { key } = button.parentElement.dataset;
      button.addEventListener("click", () => change({ [key]: value }));
    }
    const depthChoice = document.querySelector("[data-key=depth]");
    depthChoice.append(make("option", { value: "all" }, "any"));
    for (let depth = 0; depth <= deepest; depth++) {
      depthChoice.append(make("option", { value: depth }, `up to ${depth}`));
    }
    for (const control of document.querySelectorAll("select, input")) {
      control.addEventListener("input", () => {
        allRows = false;
        change({ [control.dataset.key]: control.value });
      });
    }
  }

  function showControls() {
    for (const button of document.querySelectorAll(".switch button")) {
      const { key } = button.parentElement.dataset;
      button.setAttribute("aria-pressed", String(state[key] === button.dataset.value));
    }
    for (const control of document.querySelectorAll("select, input")) {
      if (control.value !== state[control.dataset.key]) control.value = state[control.dataset.key];
    }
  }

  // --- the icicle ----------------------------------------------------------------------------

  const BOX_HEIGHT = 24;
  const NARROWEST = 0.5;
  const pen = document.createElement("canvas").getContext("2d");

  function drawIcicle(times) {
    const width = Math.max(300, element("icicle").clientWidth);
    const zoom = Number(state.zoom);
    const boxes = [];
    if (zoom >= 0) {
      ancestors(zoom).forEach((i, level) => boxes.push({ i, x: 0, width, level: level + 1, above: true }));
    }
    const level = zoom < 0 ? 0 : depths[zoom] + 1;
    const whole = zoom < 0 ? times.shown : times.total[zoom];
    if (whole > 0) place(zoom, 0, width, level, width / whole, times, boxes);
    const levels = boxes.reduce((most, box) => Math.max(most, box.level), 0) + 1;
    const svg = makeSvg("svg", {
      width, height: levels * BOX_HEIGHT, role: "group", "aria-label": "Icicle of the layer tree",
    });
    if (zoom >= 0) svg.append(drawBox({ i: -1, x: 0, width, level: 0, above: true }, times));
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    svg.append(...boxes.map((box) => drawBox(box, times)));
    element("icicle").replaceChildren(whole > 0 ? svg : make("p", {}, "No time in this view."));
    element("legend").replaceChildren(...legend());
    element("shown").textContent = `${seconds(whole)} · ${share(whole, times.whole)} % of `
      + (state.time === "host" ? "the total time" : "the device time");
  }

  /** Place a node and what is below it: modules and phases first, then ops, costliest first. */
  function place(i, x, width, level, scale, times, boxes) {
    boxes.push({ i, x, width, level });
    const below = i < 0 ? roots : children[i];
    const ordered = [
      ...below.filter((child) => !isOp(child)),
      ...below.filter(isOp).sort((a, b) => times.total[b] - times.total[a]),
    ];
    for (const child of ordered) {
      const childWidth = times.total[child] * scale;
      if (childWidth >= NARROWEST) place(child, x, childWidth, level + 1, scale, times, boxes);
      x += childWidth;
    }
  }

  function drawBox({ i, x, width, level, above }, times) {
    const name = i < 0 ? "whole block" : boxName(i);
    const spent = i < 0 ? times.shown : times.total[i];
    const group = makeSvg("g", { "data-node": i, class: above ? "above" : "" },
      makeSvg("rect", {
        x, y: level * BOX_HEIGHT, width, height: BOX_HEIGHT - 1, rx: 2,
        class: i < 0 ? "block" : colour(i),
      }));
    const label = fitting(name, width - 10);
    if (label) {
      group.append(makeSvg("text", { x: x + 5, y: level * BOX_HEIGHT + 16 }, label));
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "button");
      group.setAttribute("aria-label", `${i < 0 ? name : names[i]}: ${seconds(spent)}`);
    }
    return group;
  }

  function boxName(i) {
    if (nodes.kind[i] !== "module" || !nodes.module[i]) return nodes.name[i];
    return nodes.name[i] === nodes.module[i] ? nodes.name[i] : `${nodes.name[i]} (${nodes.module[i]})`;
  }

  /** As much of a name as fits the width in pixels. */
  function fitting(name, width) {
    if (width < 14) return "";
    if (pen.measureText(name).width <= width) return name;
    let length = Math.floor((name.length * width) / pen.measureText(name).width);
    while (length > 0 && pen.measureText(`${name.slice(0, length)}…`).width > width) length--;
    return length > 1 ? `${name.slice(0, length)}…` : "";
  }

  function legend() {
    const words = {
      module: "module", phase: "phase", op: "op", outside: "outside the model",
      message_and_aggregate: "message and aggregate (fused)", edge_update: "edge update",
    };
    const present = new Set(nodes.kind.map((_, i) => colour(i)));
    return [...present].map((name) => make("li", {},
      make("span", { class: `swatch ${name}` }), words[name] || name));
  }

  // --- the table -----------------------------------------------------------------------------

  const SHARES = [
    { key: "self", heading: "Self", unit: "%", about: "Self time in the chosen view, of the total time." },
    { key: "total", heading: "With nested", unit: "%", about: "The same with all rows below it." },
  ];

  function drawTable(times) {
    const calls = columns.find((column) => column.key === "calls");
    const shown = columns.filter((column) => column.group === state.group && column !== calls);
    const figures = [...SHARES, calls, ...shown];
    const rows = sorted(selected(), times);
    const listed = allRows ? rows : rows.slice(0, PAGE_OF_ROWS);
    const body = listed.map((i) => make("tr", {}, nameCell(i),
      ...SHARES.map(({ key }) => shareCell(times[key][i], times.whole)),
      ...[calls, ...shown].map((column) =>
        make("td", column.factor ? {} : { class: "text" }, text(column, i)))));
    element("table").replaceChildren(
      make("thead", {}, make("tr", {}, 
        heading({ key: "tree", heading: "Row", about: "Order of the model." }, "name"),
        ...figures.map((figure) => heading(figure, figure.key in times ? "share" : "")))),
      make("tbody", {}, ...body));
    drawMore(rows.length, listed.length);
  }

  function drawMore(found, listed) {
    const note = found === 0 ? "No row matches." : `${COUNTS.format(listed)} of ${COUNTS.format(found)} rows. `;
    element("more").replaceChildren(note);
    if (listed === found) return;
    const button = make("button", { type: "button" }, "Show all");
    button.addEventListener("click", () => { allRows = true; render(); });
    element("more").append(button);
  }

  function selected() {
    const wanted = state.find.toLowerCase();
    const depth = state.depth === "all" ? Infinity : Number(state.depth);
    return nodes.kind.map((_, i) => i).filter((i) =>
      (state.kinds === "all" || isOp(i) === (state.kinds === "ops"))
      && depths[i] <= depth
      && `${names[i]} ${nodes.module[i] || ""}`.toLowerCase().includes(wanted));
  }

  /** Largest first; `-key` is smallest first. What was not measured comes last either way. */
  function sorted(rows, times) {
    const key = state.sort.replace(/^-/, "");
    const figures = times[key] || values[key];
    if (!Array.isArray(figures)) return rows;
    const direction = state.sort.startsWith("-") ? 1 : -1;
    return rows.sort((a, b) => {
      const [x, y] = [figures[a], figures[b]];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return (x < y ? -direction : x > y ? direction : 0) || a - b;
    });
  }

  function heading(figure, className) {
    const button = make("button", { type: "button", title: figure.about }, figure.heading);
    button.addEventListener("click", () =>
      change({ sort: state.sort === figure.key && figure.key !== "tree" ? `-${figure.key}` : figure.key }));
    const cell = make("th", { scope: "col", class: className }, button);
    if (state.sort.replace(/^-/, "") === figure.key) {
      const rising = state.sort.startsWith("-") || figure.key === "tree";
      cell.setAttribute("aria-sort", rising ? "ascending" : "descending");
      button.append(rising ? " ▲" : " ▼");
    }
    button.append(make("small", {}, figure.unit || "\u00a0"));
    return cell;
  }

  /** In the order of the model a row is indented; otherwise it says where it is. */
  function nameCell(i) {
    const inTree = state.sort === "tree";
    const button = make("button", { type: "button", "data-node": i }, inTree ? nodes.name[i] : names[i]);
    const cell = make("td", { class: "name" }, make("span", { class: `swatch ${colour(i)}` }), button);
    if (inTree) cell.style.paddingLeft = `${8 + 16 * depths[i]}px`;
    if (nodes.kind[i] === "module" && nodes.module[i]) {
      const same = nodes.shared[i] === null ? "" : ` = ${nodes.shared[i] || nodes.name[0]}`;
      cell.append(" ", make("span", { class: "class" }, `${nodes.module[i]}${same}`));
    }
    return cell;
  }

  function shareCell(part, whole) {
    const bar = make("i");
    bar.style.width = `${whole > 0 ? Math.min(100, (100 * part) / whole) : 0}%`;
    return make("td", { class: "share" }, bar, make("b", {}, share(part, whole)));
  }

  // --- the roofline --------------------------------------------------------------------------

  const PLOT = { left: 64, right: 16, top: 16, bottom: 44, height: 380 };

  function drawRoofline(times) {
    const candidates = nodes.kind.map((_, i) => i)
      .filter((i) => isOp(i) === (state.points === "ops") && figure("byte_rate", i) !== null);
    const points = candidates.filter((i) => figure("flop_rate", i) > 0 && figure("intensity", i) > 0);
    const movers = candidates.filter((i) => figure("flops", i) === 0 && figure("byte_rate", i) > 0);
    const nothing = measured.work ? "No row of this kind has FLOPs." : WHY_NOT.work;
    element("roof").replaceChildren(points.length ? plot(points, times) : make("p", {}, nothing));
    element("movers").replaceChildren(...(movers.length ? moverTable(movers, times) : []));
  }

  function figure(key, i) {
    return values[key] ? values[key][i] : null;
  }

  function percentOfLimit(i) {
    const percent = figure("percent_of_limit", i);
    return percent === null ? NOT_MEASURED : PERCENT.format(percent);
  }

  /** A logarithmic scale from data to pixels. */
  function logScale(low, high, from, to) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const scale = (value) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
    scale.decades = [];
    for (let power = Math.ceil(a); power <= Math.floor(b); power++) scale.decades.push(10 ** power);
    scale.low = low;
    scale.high = high;
    return scale;
  }

  function plot(points, times) {
    const width = Math.max(300, element("roof").clientWidth);
    const { left, right, top, bottom, height } = PLOT;
    const { bandwidth, flop_rate: flopRate } = limits;
    const ridge = bandwidth && flopRate ? [flopRate / bandwidth] : [];
    const xs = [...points.map((i) => figure("intensity", i)), ...ridge];
    const ys = [...points.map((i) => figure("flop_rate", i)), ...(flopRate ? [flopRate] : [])];
    const x = logScale(Math.min(...xs) / 3, Math.max(...xs) * 4, left, width - right);
    const y = logScale(Math.min(...ys) / 3, Math.max(...ys) * 3, height - bottom, top);
    const svg = makeSvg("svg", { width, height, role: "group", "aria-label": "Roofline plot" });
    svg.append(...axes(x, y, width), ...ceilings(x, y), ...circles(points, x, y, times));
    return svg;
  }

  function axes(x, y, width) {
    const { left, right, top, bottom, height } = PLOT;
    const base = height - bottom;
    const word = (at, words) => makeSvg("text", { class: "quiet", ...at }, words);
    return [
      ...x.decades.flatMap((value) => [
        makeSvg("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: base }),
        word({ x: x(value), y: base + 16, "text-anchor": "middle" }, decade(value)),
      ]),
      ...y.decades.flatMap((value) => [
        makeSvg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        word({ x: left - 8, y: y(value) + 4, "text-anchor": "end" }, decade(value / 1e9)),
      ]),
      word({ x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" },
        "Arithmetic intensity [FLOP/byte]"),
      word({ x: -(top + base) / 2, y: 14, transform: "rotate(-90)", "text-anchor": "middle" },
        "Achieved [GFLOP/s]"),
    ];
  }

  function decade(value) {
    return value >= 1e-3 && value < 1e6
      ? String(Number(value.toPrecision(1))) : value.toExponential(0);
  }

  /** Attainable rate = min(matmul rate, intensity x bandwidth): Williams et al., 2009. */
  function ceilings(x, y) {
    const { bandwidth, cache_bandwidth: cache, flop_rate: flopRate } = limits;
    const slopes = [["copy", bandwidth], ["copy in cache", cache > bandwidth ? cache : null]]
      .filter(([, rate]) => rate);
    const drawn = slopes.flatMap(([name, rate]) => slope(name, rate, x, y));
    if (flopRate) {
      const ridge = flopRate / Math.max(...slopes.map(([, rate]) => rate));
      const from = Math.min(Math.max(x.low, ridge), x.high); // 0 where no bandwidth is known
      drawn.push(
        line(x(from), y(flopRate), x(x.high), y(flopRate)),
        makeSvg("text", { class: "ceiling-name", x: x(x.high) - 4, y: y(flopRate) - 7, "text-anchor": "end" },
          `matmul ${RATE.format(flopRate / 1e9)} GFLOP/s`));
    }
    return drawn;
  }

  function line(x1, y1, x2, y2) {
    return makeSvg("line", { class: "ceiling", x1, y1, x2, y2 });
  }

  /** A bandwidth ceiling from the edge of the plot to the matmul rate, its name along it. */
  function slope(name, rate, x, y) {
    const from = Math.max(x.low, y.low / rate);
    const to = Math.min(x.high, (limits.flop_rate || y.high) / rate);
    if (from >= to) return [];
    const [x1, y1, x2, y2] = [x(from), y(from * rate), x(to), y(to * rate)];
    const [px, py] = [(x1 + x2) / 2, (y1 + y2) / 2];
    const degrees = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
    return [
      line(x1, y1, x2, y2),
      makeSvg("text", {
        class: "ceiling-name", x: px, y: py - 7, "text-anchor": "middle",
        transform: `rotate(${degrees} ${px} ${py})`,
      }, `${name} ${RATE.format(rate / 1e9)} GB/s`),
    ];
  }

  /** Large circles first, so that none is hidden; the costliest are named where there is room. */
  function circles(points, x, y, times) {
    const ordered = [...points].sort((a, b) => times.total[b] - times.total[a]);
    const taken = [];
    const drawn = ordered.map((i) => {
      const radius = 4 + 12 * Math.sqrt(times.whole > 0 ? times.total[i] / times.whole : 0);
      return makeSvg("circle", {
        "data-node": i, class: colour(i), r: radius,
        cx: x(figure("intensity", i)), cy: y(figure("flop_rate", i)),
      });
    });
    const labels = ordered.slice(0, 12).map((i, at) => label(i, drawn[at], x(x.high), taken));
    return [...drawn, ...labels.filter(Boolean)];
  }

  function label(i, circle, end, taken) {
    const [cx, cy, r] = ["cx", "cy", "r"].map((name) => Number(circle.getAttribute(name)));
    const width = pen.measureText(names[i]).width;
    const left = cx + r + 4 + width < end ? cx + r + 4 : cx - r - 4 - width;
    const box = { left, right: left + width, top: cy - 8, bottom: cy + 8 };
    const hit = taken.some((other) => box.left < other.right && other.left < box.right
      && box.top < other.bottom && other.top < box.bottom);
    if (hit || left < PLOT.left) return null;
    taken.push(box);
    return makeSvg("text", { x: left, y: cy + 4 }, names[i]);
  }

  /** Gathers and copies do no arithmetic and so have no place in the plot; bandwidth is theirs. */
  function moverTable(movers, times) {
    const rows = [...movers].sort((a, b) => times.total[b] - times.total[a]).slice(0, 10);
    const body = rows.map((i) => make("tr", {},
      make("td", { class: "name" }, make("span", { class: `swatch ${colour(i)}` }),
        make("span", { "data-node": i }, names[i])),
      make("td", {}, share(times.total[i], times.whole)),
      make("td", {}, RATE.format(figure("byte_rate", i) / 1e9)),
      make("td", {}, percentOfLimit(i))));
    return [
      make("h3", {}, "Rows that move bytes and do no arithmetic"),
      make("div", { class: "scroll" }, make("table", { class: "movers" },
        make("thead", {}, make("tr", {}, ...["Row", "With nested [%]", "Bandwidth [GB/s]", "Of the limit [%]"]
          .map((words) => make("th", { scope: "col" }, words)))),
        make("tbody", {}, ...body))),
    ];
  }

  // --- hovering, clicking, keys --------------------------------------------------------------

  function showTip(i, times, clientX, clientY) {
    const lines = [
      ["With nested", `${seconds(times.total[i])} (${share(times.total[i], times.whole)} %)`],
      ["Self", `${seconds(times.self[i])} (${share(times.self[i], times.whole)} %)`],
      ...columns.map((column) => [
        column.heading,
        values[column.key][i] === null ? NOT_MEASURED : `${text(column, i)} ${column.unit || ""}`,
      ]),
    ];
    const tip = element("tip");
    tip.replaceChildren(
      make("h4", {}, names[i]),
      make("p", {}, [nodes.module[i], nodes.kind[i]].filter(Boolean).join(" · ")),
      make("table", {}, ...lines.map(([name, value]) =>
        make("tr", {}, make("th", {}, name), make("td", {}, value)))));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, clientY + 18 + height < innerHeight ? clientY + 18 : clientY - height - 10)}px`;
  }

  function nodeOf(event) {
    const target = event.target instanceof Element && event.target.closest("[data-node]");
    return target ? Number(target.dataset.node) : null;
  }

  function bindPointer() {
    const hide = () => { element("tip").hidden = true; };
    document.addEventListener("mousemove", (event) => {
      const i = nodeOf(event);
      if (i === null || i < 0) hide();
      else showTip(i, current, event.clientX, event.clientY);
    });
    document.addEventListener("mouseleave", hide);
    document.addEventListener("focusout", hide);
    document.addEventListener("focusin", (event) => {
      const i = nodeOf(event);
      const box = event.target.getBoundingClientRect();
      if (i !== null && i >= 0) showTip(i, current, box.left, box.bottom);
    });
    document.addEventListener("click", (event) => {
      const i = nodeOf(event);
      if (i !== null) zoomTo(i);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") change({ zoom: defaults.zoom });
      const i = event.key === "Enter" && event.target.closest("g") ? nodeOf(event) : null;
      if (i !== null) zoomTo(i);
    });
  }

  function zoomTo(i) {
    element("tip").hidden = true;
    change({ zoom: String(i) });
  }

  // --- all together --------------------------------------------------------------------------

  let current = null;

  function render() {
    current = timesOf(state);
    showControls();
    drawIcicle(current);
    drawTable(current);
    drawRoofline(current);
  }

  document.documentElement.classList.add("scripted");
  bindControls();
  bindPointer();
  readAddress();
  render();
  addEventListener("hashchange", () => { readAddress(); render(); });
  let drawnWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== drawnWidth) render();
    drawnWidth = innerWidth;
  });
})();
