"use strict";
// Small charts as inline SVG. Every text goes into the page as a text node, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function element(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}
const make = (tag, attributes = {}, ...children) => element(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => element(document.createElementNS(SVG, tag), attributes, children);

// Characters that steer a terminal or the direction of writing are shown by their numbers.
const CONTROL = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
function plain(text) {
  return text.replace(CONTROL, (c) => (c === "\n" || c === "\t") ? c
    : `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function number(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  const text = size === 0 ? "0" : size >= 1e7 || size < 1e-4 ? x.toExponential(1)
    : size >= 1000 ? Math.round(x).toLocaleString("en").replaceAll(",", "\u202f") : String(Number(x.toPrecision(3)));
  return text.replace("-", "−");
}

function percent(x) {
  if (x === null || x === undefined) return "–";
  const of100 = 100 * x;
  return `${(Math.abs(of100) >= 1 || of100 === 0 ? of100.toFixed(1) : of100.toPrecision(1)).replace("-", "−")} %`;
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function extent(values, { floor = null, share = false } = {}) {
  const known = values.filter((v) => v !== null && v !== undefined);
  let low = Math.min(...known), high = Math.max(...known);
  if (floor !== null) low = Math.max(low, floor);
  if (floor === 0) low = 0;
  if (high <= low) { const pad = Math.abs(low) * 0.1 || (share ? 0.01 : 1); low -= share ? 0 : pad; high = low + 2 * pad; }
  const pad = (high - low) * 0.05;
  high += pad;
  if (low !== floor) low = share && low - pad < 0 ? 0 : low - pad;
  return share ? [Math.max(0, low), Math.min(1, high)] : [low, high];
}

// A frame with axes: {root, x(value), y(value), layer}. The layer is clipped to the frame.
let frames = 0;
function frame({ width, height, xs, ys, share = false, xTicks = 5, yTicks = 4, xLabel = "", label = "", whole = true, bare = false, left = 44 }) {
  const right = 6, top = 9, bottom = xLabel ? 32 : 20;
  const x = (v) => left + (v - xs[0]) / (xs[1] - xs[0] || 1) * (width - left - right);
  const y = (v) => height - bottom - (v - ys[0]) / (ys[1] - ys[0] || 1) * (height - top - bottom);
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  const clip = `clip${frames++}`;
  root.append(draw("clipPath", { id: clip }, draw("rect", { x: left - 5, y: 0, width: width - left + 5 + right, height: height - bottom + 4 })));
  for (const v of bare ? [] : ticks(ys[0], ys[1], yTicks)) {
    root.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }),
      draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, share ? `${number(100 * v)} %` : number(v)));
  }
  const across = bare ? [] : ticks(xs[0], xs[1], xTicks).filter((v) => !whole || Number.isInteger(v));
  for (const v of across) root.append(draw("text", { x: x(v), y: height - bottom + 15, "text-anchor": "middle" }, number(v)));
  root.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (xLabel) root.append(draw("text", { x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, xLabel));
  const layer = root.appendChild(draw("g", { "clip-path": `url(#${clip})` }));
  return { root, layer, x, y, width, height, left, right, top, bottom };
}

// "M x y L x y", broken where there is no value.
function path(xs, ys, f) {
  let pen = "M", out = "";
  ys.forEach((v, i) => {
    if (v === null) { pen = "M"; return; }
    out += `${pen}${f.x(xs[i]).toFixed(1)} ${f.y(v).toFixed(1)}`;
    pen = "L";
  });
  return out;
}

function area(series, f) {
  const there = series.x.map((_, i) => i).filter((i) => series.low[i] !== null);
  const point = (i, side) => `${f.x(series.x[i]).toFixed(1)} ${f.y(series[side][i]).toFixed(1)}`;
  return `M${there.map((i) => point(i, "low")).join("L")}L${there.reverse().map((i) => point(i, "high")).join("L")}Z`;
}

function lines(f, series) {
  const means = series.some((one) => one.thin), several = series.filter((one) => !one.thin).length > 1;
  series.forEach((one, index) => {
    const group = f.layer.appendChild(draw("g", { class: `k${one.color ?? index}` }));
    if (one.thin) { group.append(draw("path", { class: "line thin", d: path(one.x, one.y, f) })); return; }
    // Few points with intervals, several to a place: bars beside each other say more than bands over each other.
    const bars = one.low && several && !means && one.x.length <= 12, beside = bars ? 4 * (index - (series.length - 1) / 2) : 0;
    if (one.low) group.append(draw("path", { class: several ? "band faint" : "band", d: area(one, f) }));
    if (bars) one.x.forEach((x, i) => group.append(draw("line", { class: "whisker",
      x1: f.x(x) + beside, x2: f.x(x) + beside, y1: f.y(one.low[i]), y2: f.y(one.high[i]) })));
    if (one.dots) one.dots.forEach((v, i) => {
      if (v !== null) group.append(draw("circle", { class: "dot", cx: f.x(one.x[i]).toFixed(1), cy: f.y(v).toFixed(1), r: 1.3 }));
    });
    group.append(draw("path", { class: one.dashed ? "line dashed" : "line", d: path(one.x, one.y, f) }));
    if (one.x.length <= 40) one.y.forEach((v, i) => {
      if (v !== null) group.append(draw("circle", { class: "point", cx: f.x(one.x[i]) + beside, cy: f.y(v), r: 2.6 }));
    });
  });
}

function nearest(xs, wanted) {
  let best = 0;
  xs.forEach((x, i) => { if (Math.abs(x - wanted) < Math.abs(xs[best] - wanted)) best = i; });
  return best;
}

// Follow the pointer: onMove(x) inside, onMove(null) when it leaves.
function follow(f, xs, onMove) {
  const cursor = f.root.appendChild(draw("line", { class: "cursor", y1: f.top, y2: f.height - f.bottom, visibility: "hidden" }));
  const show = (v) => {
    cursor.setAttribute("visibility", v === null ? "hidden" : "visible");
    if (v !== null) { cursor.setAttribute("x1", f.x(v)); cursor.setAttribute("x2", f.x(v)); }
  };
  const at = (event) => {
    const box = f.root.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * f.width;
    return xs[nearest(xs.map(f.x), place)];
  };
  f.root.addEventListener("pointermove", (event) => { const v = at(event); show(v); onMove(v); });
  f.root.addEventListener("pointerdown", (event) => { const v = at(event); show(v); onMove(v); });
  f.root.addEventListener("pointerleave", () => { show(null); onMove(null); });
  return { show, at };
}

// Draws now and again whenever the width of the place has changed.
function fitted(place, paint) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(place.clientWidth);
    if (now > 0 && now !== width) { width = now; place.replaceChildren(paint(width)); }
  }).observe(place);
  return place;
}

// A panel of curves: title, unit, one coloured reading a series, chart.
function curves(panel) {
  const named = panel.series.filter((one) => !one.thin), alike = named.length === panel.series.length;
  const xs = [...new Set(panel.series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const values = panel.series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? []), ...(one.dots ?? [])]);
  const readout = make("div", { class: "readout" }), form = panel.share ? percent : number;
  const read = (at) => {
    const spans = named.map((one, index) => {
      const i = at === null ? one.x.length - 1 : alike ? one.x.indexOf(at)
        : at > one.x.at(-1) ? -1 : nearest(one.x, at);
      if (i < 0) return null;
      const interval = one.low && one.low[i] !== null
        ? ` [${form(one.low[i])}, ${form(one.high[i])}]` : "";
      const n = one.n ? `, n ${number(one.n[i])}` : "";
      const single = at !== null && one.dots ? ` (alone ${form(one.dots[i])})` : "";
      return make("span", { class: `k${one.color ?? index}` }, `${plain(one.name)} ${form(one.y[i])}${interval}${single}${n}`);
    });
    const where = at === null ? null : make("span", { class: "muted" }, `${panel.x_label} ${number(at)}:`);
    readout.replaceChildren(...[where, ...spans].filter(Boolean));
  };
  read(null);
  const place = fitted(make("div", { class: "chart" }), (width) => {
    const ends = xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 1, xs[0] + 1];
    const ours = panel.x_label !== "iteration";
    const f = frame({ width, height: ours ? 200 : 160, xs: ends, ys: extent(values, panel), share: panel.share,
      whole: !ours, xLabel: ours ? panel.x_label : "", label: `${panel.title}, ${panel.unit}, by ${panel.x_label}` });
    lines(f, panel.series);
    follow(f, xs, read);
    return f.root;
  });
  return make("figure", { class: "panel" }, make("h3", {}, `${plain(panel.title)} `, make("span", { class: "unit" }, panel.unit)), readout, place);
}
