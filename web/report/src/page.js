// This script draws the charts of the page. Every figure element has a kind and data, and is
// redrawn when its width changes. Colours are CSS variables, so a change of theme needs no
// redraw.
import { kinds } from "./charts.js";
import { beginFan, fanControls, fanTable } from "./fan.js";
import { saveButtons, tableRows } from "./save.js";

const themes = ["auto", "light", "dark"];
const names = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function startTheme() {
  const button = document.getElementById("theme");
  // A page opened from disk may have no storage.
  const remember = (v) => {
    try {
      return v === undefined ? localStorage.getItem("loadstar-theme") : localStorage.setItem("loadstar-theme", v);
    } catch {
      return null;
    }
  };
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = names[theme];
  };
  const before = remember();
  set(themes.includes(before) ? before : "auto");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    set(next);
    remember(next);
  });
}

function startFigure(figure, data) {
  const picture = figure.querySelector(".picture");
  const kind = figure.dataset.kind;
  const state = {};
  let drawn = 0;
  const draw = (width) => {
    drawn = width;
    picture.replaceChildren(...kinds[kind](data, width, { state }));
    // Labels on groups have no meaning. The picture has one label for all.
    for (const g of picture.querySelectorAll("g[aria-label]")) {
      g.dataset.mark = g.getAttribute("aria-label");
      g.removeAttribute("aria-label");
    }
    figure.dataset.drawn = "";
  };
  const controls = figure.querySelector(".controls");
  if (kind === "fan") {
    beginFan(data, state);
    controls.append(...fanControls(data, state, () => draw(drawn), figure.id));
  }
  const tables = () => tableRows(figure.parentElement.querySelector(".beside"));
  figure.append(saveButtons(figure, kind === "fan" ? () => fanTable(data, state) : tables));
  // On paper (A4 without margins), a chart has the whole width, or half the width beside a
  // table or another chart.
  addEventListener("beforeprint", () => draw(figure.parentElement.classList.contains("wide") ? 690 : 338));
  addEventListener("afterprint", () => draw(Math.floor(picture.clientWidth)));
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && width !== drawn) draw(width);
  }).observe(picture);
}

// startScroll marks the tables that are wider than the screen, so that a reader knows that
// they scroll.
function startScroll(box) {
  const mark = () => {
    const left = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("more", left > 2);
    box.parentElement.classList.toggle("sideways", box.scrollWidth > box.clientWidth + 2);
  };
  new ResizeObserver(mark).observe(box);
  box.addEventListener("scroll", mark, { passive: true });
  mark();
}

startTheme();
const all = JSON.parse(document.getElementById("data").textContent);
for (const figure of document.querySelectorAll("figure[data-kind]")) startFigure(figure, all[figure.id]);
for (const box of document.querySelectorAll(".scroll")) startScroll(box);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => (d.open = false)));
