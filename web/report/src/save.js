// This script saves a figure as an SVG file, and the figure's numbers as a CSV file.

// colours replaces the CSS variables in a text with their values, because a file has no style
// sheet.
function colours(text) {
  const style = getComputedStyle(document.documentElement);
  for (let i = 0; i < 3; i++) text = text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim() || "#888888");
  return text.replaceAll("currentColor", style.getPropertyValue("--ink").trim());
}

// picture returns the charts of a figure as one SVG document, with its title, legend and, if
// the data is synthetic, a note.
export function picture(figure) {
  const all = [...figure.querySelectorAll(".picture svg")].filter((s) => !s.closest(".legend") && !s.parentElement.closest("svg"));
  const escape = (s) => s.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const text = (x, y, s, more = "") => `<text x="${x}" y="${y}" fill="var(--ink)" ${more}>${escape(s)}</text>`;
  const heading = figure.querySelector("h4").firstChild.textContent;
  const note = figure.hasAttribute("data-generated") ? " (GENERATED data)" : "";
  let y = 30;
  let width = 0;
  const parts = [text(8, 20, heading + note, 'font-size="15" font-weight="600"')];
  for (const item of figure.querySelectorAll(".legend li")) {
    const line = item.querySelector("svg");
    parts.push(`<g transform="translate(8,${y})">${line.innerHTML}</g>`, text(42, y + 10, item.textContent.trim()));
    y += 17;
  }
  for (const svg of all) {
    const title = svg.closest("div")?.querySelector(":scope > p")?.textContent.trim();
    if (title) parts.push(text(8, y + 14, title, 'font-weight="600"'));
    if (title) y += 18;
    const copy = svg.cloneNode(true);
    for (const e of copy.querySelectorAll("style, [aria-label=tip], .under")) e.remove();
    const [w, h] = [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
    copy.setAttribute("x", 0);
    copy.setAttribute("y", y);
    copy.setAttribute("width", w);
    copy.setAttribute("height", h);
    copy.removeAttribute("style");
    parts.push(new XMLSerializer().serializeToString(copy));
    y += h + 8;
    width = Math.max(width, w);
  }
  return colours(
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${y}" viewBox="0 0 ${width} ${y}" font-family="sans-serif" font-size="12" fill="currentColor" color="var(--ink)"><rect width="100%" height="100%" fill="var(--paper)"/>${parts.join("")}</svg>`,
  );
}

// csv formats rows. A field that a spreadsheet would treat as a formula gets an apostrophe.
export function csv(rows) {
  const field = (v) => {
    if (v === null || v === undefined) return "";
    let s = typeof v === "number" ? String(Number(v.toPrecision(6))) : String(v);
    if (typeof v === "string" && /^[=@\t]|^[+-](?![\d.])/.test(s)) s = `'${s}`;
    return /[",\r\n]/.test(s) ? `"${s.replaceAll('"', '""')}"` : s;
  };
  return rows.map((r) => r.map(field).join(",")).join("\r\n") + "\r\n";
}

// tableRows returns the text of the tables beside a figure.
export function tableRows(box) {
  const rows = [];
  for (const table of box?.querySelectorAll("table") ?? []) {
    if (rows.length) rows.push([]);
    for (const tr of table.rows) rows.push([...tr.cells].map((c) => c.textContent.replaceAll("\u2060", "").replaceAll("\u00a0", " ").trim()));
  }
  return rows;
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const a = document.createElement("a");
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// saveButtons returns the buttons of a figure.
export function saveButtons(figure, rows) {
  const title = figure.querySelector("h4").firstChild.textContent.trim();
  const file = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || figure.id;
  const button = (text, run) => {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = text;
    b.setAttribute("aria-label", `Save ${text}: ${title}`);
    b.addEventListener("click", run);
    return b;
  };
  const box = document.createElement("span");
  box.className = "save";
  box.append(button("SVG", () => save(`${file}.svg`, "image/svg+xml", picture(figure))), button("CSV", () => save(`${file}.csv`, "text/csv", csv(rows()))));
  return box;
}
