// The page: reads its own JSON and builds the sections.

const SECTIONS = {
  outcome: ["Outcome", "Held-out tasks are the same at every evaluation."],
  learning: ["Learning", "Per optimizer step, averaged over an iteration."],
  critic: ["Critic", "V and Q of the policy that played, against the plain discounted returns that followed."],
  cost: ["Cost", ""],
};
const smoothing = data.window > 1
  ? `Dots: single iterations. Lines: means over ${data.window} of them; shaded: the 95 % interval of that mean, over episodes.`
  : "Shaded: 95 % intervals, over episodes.";

const interval = ([p, low, high]) => `${percent(p)}  [${percent(low)}, ${percent(high)}]`;

function head() {
  const { run } = data;
  document.getElementById("head").append(
    make("h1", {}, plain(run.name)),
    make("p", { class: "muted" }, plain(`${run.model} in ${run.environment}, seed ${run.seed}; `
      + `${run.done} of ${run.iterations} iterations complete; ${number(data.episodes.total)} episodes on disk.`)));
  if (!data.headline.length) return;
  const rows = data.headline.map((row) => [plain(row.split), ...[row.first, row.last].map((one) =>
    one ? `${interval(one.success)}  n ${one.success[3]}` : "–")]);
  const [{ first, last }] = data.headline;
  document.getElementById("head").append(table(
    ["held-out success, 95 %", `policy ${first.iteration}`, last ? `policy ${last.iteration}` : ""], rows));
}

function curveSections() {
  for (const [id, [title, note]] of Object.entries(SECTIONS)) {
    const own = data.panels.filter((panel) => panel.section === id);
    if (!own.length) continue;
    const place = section(id, title, id === "outcome" ? `${note} ${smoothing}` : note);
    place.append(make("div", { class: "panels" }, ...own.map(curves)));
    if (id === "outcome" && data.types.length) place.append(
      make("h3", {}, "By task type"),
      make("p", { class: "note" }, "Hollow: the first evaluation, filled: the last; bars: 95 % intervals."),
      make("div", { class: "panels wide" }, ...data.types.map(typesPanel)));
    if (id === "critic" && data.calibration.parts.length) calibration(place);
    if (id === "cost" && data.times.length) place.append(table(["stage", "times", "seconds", "share"],
      data.times.map((row) => [row.stage, number(row.times), number(row.seconds), percent(row.share)])));
  }
}

// Success by task type, first evaluation against last.
function typesPanel({ split, first, last, rows }) {
  const readout = make("div", { class: "readout muted" }, `policy ${first}` + (last === null ? "" : ` → policy ${last}`));
  const place = fitted(make("div"), (width) => {
    const left = Math.min(204, width * 0.5), row = 22, height = rows.length * row + 34;
    const f = frame({ width, height, xs: [0, 1], ys: [0, 1], bare: true, left, label: `Success by task type, ${split}` });
    for (const v of [0, 0.25, 0.5, 0.75, 1]) f.root.append(
      draw("line", { class: "grid", x1: f.x(v), x2: f.x(v), y1: 4, y2: height - f.bottom }),
      draw("text", { x: f.x(v), y: height - f.bottom + 15, "text-anchor": "middle" }, `${100 * v} %`));
    rows.forEach((one, i) => {
      const y = 8 + row * (i + 0.5);
      f.root.append(draw("text", { class: "label", x: left - 8, y: y + 4, "text-anchor": "end" }, plain(cut(one.type, Math.floor(left / 6.2)))));
      [[one.first, -3, "hollow"], [one.last, 3, "point"]].forEach(([value, shift, kind]) => {
        if (!value) return;
        f.root.append(draw("g", { class: "k0" },
          draw("line", { class: "whisker", x1: f.x(value[1]), x2: f.x(value[2]), y1: y + shift, y2: y + shift, opacity: kind === "hollow" ? 0.45 : 1 }),
          draw("circle", { class: kind, cx: f.x(value[0]), cy: y + shift, r: 3.6 },
            draw("title", {}, `${plain(one.type)}: ${interval(value)}, n ${value[3]}`))));
      });
    });
    return f.root;
  });
  return make("figure", { class: "panel" }, make("h3", {}, `${plain(split)} `, make("span", { class: "unit" }, "success, share of episodes")), readout, place);
}

function calibration(place) {
  const { parts, gamma } = data.calibration;
  const bins = parts.flatMap((part) => [...part.V, ...part.Q]);
  if (!bins.length) return;
  const ys = extent(bins.flatMap((bin) => [bin.low, bin.high, bin.predicted])), xs = extent(bins.map((bin) => bin.predicted));
  place.append(make("h3", {}, "Calibration "), make("p", { class: "note" },
    `Each point: a tenth of the turns, by what V or Q said; up: the mean discounted return (γ ${gamma}) that followed, with its `
    + "95 % interval over episodes. On the dashed line a readout is right on average; a flat row knows nothing."));
  const grid = make("div", { class: "panels square" });
  for (const [index, name] of ["V", "Q"].entries()) for (const part of parts.filter((one) => one[name].length)) {
    const readout = make("div", { class: "readout muted" }, `${number(part.episodes)} of ${number(part.seen)} episodes`);
    const idle = readout.textContent;
    const chart = fitted(make("div"), (width) => {
      const f = frame({ width, height: 190, xs, ys, xTicks: 4, xLabel: `${name}, reward units`, whole: false, left: 34,
        label: `Calibration of ${name}, iterations ${part.first} to ${part.last}` });
      const ends = [Math.max(xs[0], ys[0]), Math.min(xs[1], ys[1])];
      f.layer.append(draw("path", { class: "line diagonal", d: path(ends, ends, f) }));
      const group = f.layer.appendChild(draw("g", { class: `k${index}` }));
      for (const bin of part[name]) group.append(
        draw("line", { class: "whisker", x1: f.x(bin.predicted), x2: f.x(bin.predicted), y1: f.y(bin.low), y2: f.y(bin.high) }),
        draw("circle", { class: "point", cx: f.x(bin.predicted), cy: f.y(bin.returned), r: 3 }));
      const at = part[name].map((bin) => bin.predicted);
      follow(f, at, (v) => {
        const bin = part[name][at.indexOf(v)];
        readout.textContent = bin ? `${name} ${number(bin.predicted)} → ${number(bin.returned)} [${number(bin.low)}, ${number(bin.high)}], ${bin.turns} turns` : idle;
      });
      return f.root;
    });
    grid.append(make("figure", { class: "panel" }, make("h3", {}, `${name} `,
      make("span", { class: "unit" }, `iterations ${part.first}–${part.last}`)), readout, chart));
  }
  place.append(grid);
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, Math.max(1, length - 1))}…` : text;
}

function faults() {
  if (!data.errors.length && !data.damage.length) return;
  const place = section("errors", "Errors", "errors.jsonl, newest first, and files that could not be read.");
  for (const one of data.errors) {
    place.append(make("div", { class: "mono note" }, make("span", { class: "bad" }, plain(`${one.error} `)),
      plain(`${one.time}  ${one.stage} ${one.iteration}, rank ${one.rank}: ${one.message}`),
      one.lines.length ? make("details", {}, make("summary", {}, "last lines"), make("pre", {}, plain(one.lines.join("\n")))) : null));
  }
  for (const line of data.damage) place.append(make("div", { class: "mono note" }, plain(line)));
}

function settings() {
  const place = section("settings", "Settings", "");
  place.append(make("details", {}, make("summary", {}, "config.yaml"), make("pre", {}, plain(data.config))),
    make("p", { class: "note" }, plain(`Written by SAPO pipeline ${data.run.version} (arXiv 2608.19842).`)));
}

document.addEventListener("DOMContentLoaded", () => { head(); curveSections(); browser(); faults(); settings(); });
