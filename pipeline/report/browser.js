// The browser of episodes: a list with filters, and one episode with V and Q along its turns.

const PAGE = 100;
const { texts, lists, total } = data.episodes;
const episodes = data.episodes.rows.map((row) => {
  const one = Object.fromEntries(data.episodes.fields.map((name, i) => [name, row[i]]));
  one.length = one.valid.length;
  const falls = (one.values ?? []).slice(1).map((v, t) => one.values[t] - v);  // of V, from one turn to the next
  one.drop = falls.length ? Math.max(...falls) : null;
  one.dropTurn = falls.indexOf(one.drop);
  one.paid = one.rewards.reduce((sum, r) => sum + r, 0);
  return one;
});
// The addresses of `python -m pipeline.inspect`; what would have the same one gets its temperature and sample too.
const byId = new Map();
for (const one of episodes) {
  const address = `${one.source === "rollouts" ? "" : "e"}${one.iteration}:${one.task}`;
  one.id = byId.has(address) ? `${address} T${one.temperature} #${one.sample}` : address;
  byId.set(one.id, one);
}
const byTask = Map.groupBy ? Map.groupBy(episodes, (one) => one.task) : episodes.reduce(
  (map, one) => map.set(one.task, [...(map.get(one.task) ?? []), one]), new Map());
let searched = "";

// Text of a model or an environment, with what is searched for marked.
function shown(index) {
  const text = plain(texts[index]), place = make("span");
  if (!searched) return make("span", {}, text);
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(searched); at >= 0; at = lower.indexOf(searched, from)) {
    place.append(text.slice(from, at), make("mark", {}, text.slice(at, at + searched.length)));
    from = at + searched.length;
  }
  place.append(text.slice(from));
  return place;
}

const link = (one) => `#episode=${encodeURIComponent(one.id)}`;
const outcome = (one) => one.status === "error" ? ["!", "bad", "error"] : one.success ? ["✓", "good", "success"] : ["✗", "bad", "failure"];
const where = (one) => one.source === "rollouts" ? `iteration ${one.iteration}` : `evaluation ${one.iteration}, ${one.split}`;

function choice(label, options) {
  return make("select", { "aria-label": label }, ...options.map(([value, text]) => make("option", { value }, plain(text))));
}

function browser() {
  const { shown: kept, tasks } = data.episodes;
  const note = kept === total ? `All ${number(total)} episodes of the run are in this page.`
    : `A sample: ${number(kept)} of the run's ${number(total)} episodes are in this page, those of ${number(tasks)} tasks picked by a `
    + "hash of their names. Everything above counts all of them; `python -m pipeline.inspect` shows the others.";
  const place = section("episodes", "Episodes", `${note} V and Q are known for rollouts alone.`);
  if (!episodes.length) return;
  const types = [...new Set(episodes.map((one) => one.type))].sort();
  const sources = [...new Set(episodes.filter((one) => one.source !== "rollouts").map((one) => one.split))].sort();
  const search = make("input", { type: "search", placeholder: "Search in goals, observations, responses", "aria-label": "Search" });
  const filters = {
    source: choice("Where from", [["", "rollouts and evaluations"], ["rollouts", "rollouts"], ...sources.map((s) => [`=${s}`, `evaluation: ${s}`])]),
    result: choice("Result", [["", "any result"], ["success", "success"], ["failure", "failure"], ["error", "error"]]),
    type: choice("Task type", [["", "all task types"], ...types.map((type) => [`=${type}`, type])]),
    sort: choice("Sort by", [["newest", "newest first"], ["oldest", "oldest first"], ["drop", "largest fall of V"], ["long", "most turns"], ["paid", "highest return"], ["invalid", "most invalid"]]),
  };
  const list = make("div", { class: "list", role: "list" });
  const detail = make("article", { class: "detail", id: "episode", "aria-live": "polite" });
  const count = make("p", { class: "note" });
  place.append(make("div", { class: "filters" }, search, ...Object.values(filters)),
    make("div", { class: "browser" }, make("div", { class: "side" }, count, list), detail));

  const orders = {
    newest: (a, b) => b.iteration - a.iteration, oldest: (a, b) => a.iteration - b.iteration,
    drop: (a, b) => (b.drop ?? -1) - (a.drop ?? -1), long: (a, b) => b.length - a.length, paid: (a, b) => b.paid - a.paid,
    invalid: (a, b) => b.valid.filter((v) => !v).length - a.valid.filter((v) => !v).length,
  };
  let found = [];
  const refresh = () => {
    searched = search.value.toLowerCase();
    const hits = searched ? new Set(texts.flatMap((text, i) => plain(text).toLowerCase().includes(searched) ? [i] : [])) : null;
    const { source, result, type, sort } = Object.fromEntries(Object.entries(filters).map(([name, node]) => [name, node.value]));
    found = episodes.filter((one) => (!source || (source === "rollouts" ? one.source === source : one.source !== "rollouts" && `=${one.split}` === source))
      && (!result || outcome(one)[2] === result) && (!type || `=${one.type}` === type)
      && (!hits || one.texts.some((i) => hits.has(i)) || one.task.toLowerCase().includes(searched)));
    found.sort(orders[sort]);
    count.textContent = `${number(found.length)} episodes`;
    list.replaceChildren();
    list.scrollTop = 0;
    addItems(0);
  };
  const addItems = (from) => {
    list.querySelector(".more")?.remove();
    list.append(...found.slice(from, from + PAGE).map(item));
    if (found.length > from + PAGE) {
      const more = make("button", { class: "more", type: "button" }, `${number(found.length - from - PAGE)} more`);
      more.addEventListener("click", () => addItems(from + PAGE));
      list.append(more);
    }
    mark();
  };
  const mark = () => list.querySelectorAll(".item").forEach((node) =>
    node.setAttribute("aria-current", String(node.getAttribute("href") === location.hash)));
  const open = () => {
    if (!location.hash.startsWith("#episode=")) return;
    let one;
    try { one = byId.get(decodeURIComponent(location.hash.slice(9))); } catch { return; }
    detail.replaceChildren(...(one ? episode(one) : [make("p", {}, "This episode is not in the page's sample.")]));
    mark();
    detail.scrollIntoView({ block: "start" });
  };
  let pause;
  search.addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(() => { refresh(); open(); }, 200); });
  Object.values(filters).forEach((node) => node.addEventListener("change", refresh));
  addEventListener("hashchange", open);
  refresh();
  if (location.hash.startsWith("#episode=")) open();
  else detail.replaceChildren(...episode(found[0]));
}

function item(one) {
  const [sign, tone, word] = outcome(one);
  const facts = [where(one), `${one.length} turns`, one.drop > 0 ? `V falls ${number(one.drop)} after turn ${one.dropTurn}` : null, plain(one.type)];
  return make("a", { class: "item", href: link(one), role: "listitem" },
    make("span", { class: tone, title: word }, sign), make("span", { class: "goal" }, one.texts.length ? cut(plain(texts[one.texts[0]]), 200) : ""),
    make("span", { class: "muted" }, number(one.paid)), make("span", { class: "facts" }, facts.filter(Boolean).join(" · ")));
}

function episode(one) {
  const [, tone, word] = outcome(one);
  const facts = [where(one), plain(one.type), `${one.status} after ${one.length} turns`, `return ${number(one.paid)}`, `T ${one.temperature}`];
  const others = (byTask.get(one.task) ?? []).filter((other) => other !== one);
  const turns = one.valid.map((_, t) => turn(one, t));
  const chart = one.length ? along(one, turns) : null;
  return [
    make("h3", {}, shown(one.texts[0])),
    make("p", { class: "note" }, make("b", { class: tone }, word), ` · ${facts.join(" · ")}`, make("br"), make("code", {}, plain(`${one.id}`))),
    others.length ? make("details", others.length > 8 ? {} : { open: "" }, make("summary", {}, `this task's other ${others.length} episodes here`),
      make("div", { class: "others" }, ...others.map((other) => make("a", { href: link(other) },
        make("span", { class: outcome(other)[1] }, outcome(other)[0]), ` ${plain(where(other))}`)))) : null,
    one.error ? make("pre", { class: "text bad" }, plain(one.error)) : null,
    chart, ...turns,
  ].filter(Boolean);
}

// V, Q and the lambda-return over the turns, as far as the algorithm has them; a cross at the foot is an invalid action. Without V: the rewards.
function along(one, turns) {
  const xs = one.valid.map((_, t) => t);
  const series = one.values ? [
    { name: "V before", y: one.values, color: 0 }, ...(one.q_values ? [{ name: "Q after", y: one.q_values, color: 1 }] : []),
    { name: "λ-return", y: one.returns, color: 9, dashed: true },
  ] : [{ name: "reward", y: one.rewards, color: 2 }];
  const readout = make("div", { class: "readout" });
  const read = (t) => readout.replaceChildren(make("span", { class: "muted" }, t === null ? "reward units, by turn" : `turn ${t}:`),
    ...series.map((s) => make("span", { class: `k${s.color}` }, t === null ? s.name : `${s.name} ${number(s.y[t])}`)),
    make("span", { class: "muted" }, one.valid.includes(0) ? "× invalid action" : ""));
  read(null);
  const chosen = (t) => turns.forEach((node, i) => node.classList.toggle("chosen", i === t));
  const chart = fitted(make("div"), (width) => {
    const f = frame({ width, height: 150, xs: xs.length > 1 ? [0, xs.length - 1] : [-1, 1], ys: extent(series.flatMap((s) => s.y)),
      xTicks: 8, label: "V and Q along the turns", left: 34 });
    lines(f, series.map((s) => ({ ...s, x: xs })));
    one.valid.forEach((valid, t) => {
      if (valid) return;
      const x = f.x(t), y = f.height - f.bottom;
      f.root.append(draw("path", { class: "invalid", d: `M${x - 3} ${y - 3}L${x + 3} ${y + 3}M${x - 3} ${y + 3}L${x + 3} ${y - 3}` }));
    });
    const { show, at } = follow(f, xs, (t) => { read(t); chosen(t); });
    f.root.addEventListener("click", (event) => turns[at(event)].scrollIntoView({ block: "start" }));
    turns.forEach((node, t) => node.addEventListener("pointerenter", () => { show(t); read(t); }));
    return f.root;
  });
  return make("div", { class: "sticky" }, readout, chart);
}

function turn(one, t) {
  const [observation, response, action] = one.texts.slice(1 + 3 * t, 4 + 3 * t);
  const fact = (name, value) => make("span", {}, `${name} `, make("b", {}, value));
  const known = [["V", one.values], ["Q", one.q_values], ["advantage", one.advantages], ["λ-return", one.returns]]
    .filter(([, series]) => series).map(([name, series]) => fact(name, number(series[t])));
  const actions = one.lists[t] === null ? null : lists[one.lists[t]];
  const kind = one.valid[t] ? (one.rewards[t] > 0 ? " paid" : "") : " wrong";
  return make("div", { class: `turn${kind}` }, make("div", { class: "index" }, String(t)),
    make("div", {}, make("div", { class: "text observation" }, shown(observation)),
      make("div", { class: "text response mono" }, shown(response)),
      make("div", { class: "meta" }, one.valid[t] ? make("span", {}, "action ", make("b", {}, shown(action))) : make("span", { class: "bad" }, "invalid"),
        one.rewards[t] ? fact("reward", number(one.rewards[t])) : null, ...known,
        fact("tokens", `${one.tokens[t]} × ${number(one.nats[t])} nats`)),
      actions && actions.length ? make("details", {}, make("summary", {}, `${actions.length} admissible actions`),
        make("pre", {}, actions.map((i) => plain(texts[i])).join("\n"))) : null));
}
