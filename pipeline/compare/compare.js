// The page of a comparison: tables and curves.

function head() {
  document.getElementById("head").append(
    make("h1", {}, plain(data.title)),
    make("p", { class: "muted" }, plain(data.subtitle)),
    ...data.notes.map((note) => make("p", { class: "note" }, make("span", { class: "bad" }, "note "), plain(note))));
}

function tableSection(place, { title, note, head, rows }) {
  if (title) place.append(make("h3", {}, plain(title)));
  place.append(make("p", { class: "note" }, plain(note)), table(head.map(plain), rows.map((row) => row.map(plain))));
}

function everything() {
  const [first, ...others] = data.tables;
  tableSection(section("success", "Success", ""), { ...first, title: "" });
  for (const split of new Set(data.panels.map((panel) => panel.section))) {
    const place = section(`curves-${split}`, `Curves, ${split}`,
      "Thin: single seeds. Thick: their interquartile mean; shaded: its 95 % bootstrap interval over seeds.");
    place.append(make("div", { class: "panels broad" }, ...data.panels.filter((panel) => panel.section === split).map(curves)));
  }
  const place = section("tables", "Tables", "");
  for (const one of others) tableSection(place, one);
  section("settings", "Settings", "").append(
    make("details", {}, make("summary", {}, "the same in all runs"), make("pre", {}, plain(data.settings))),
    make("p", { class: "note" }, plain(`Written by SAPO pipeline ${data.version} (arXiv 2608.19842).`)));
}

document.addEventListener("DOMContentLoaded", () => { head(); everything(); });
