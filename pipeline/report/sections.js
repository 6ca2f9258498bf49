// The frame of a page: its JSON, headings with their links, tables.

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

function section(id, title, note) {
  document.getElementById("nav").append(make("a", { href: `#${id}` }, title));
  const place = make("section", {}, make("h2", { id }, title), note ? make("p", { class: "note" }, note) : null);
  main.append(place);
  return place;
}

function table(head, rows) {
  const cell = (tag, value, i) => make(tag, i > 0 ? { class: "number" } : {}, value);
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((value, i) => cell("th", value, i)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, i) => cell("td", value, i)))))));
}
