// Draws the charts of the page. Every figure element has a kind and data, and is redrawn
// when its width changes. Colours are CSS variables, so a change of theme needs no
// redraw.
import { kinds } from "./charts.js";
import { pick } from "./parts.js";

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
  const generated = figure.hasAttribute("data-generated");
  const state = {};
  let drawn = 0;
  const draw = (width) => {
    drawn = width;
    picture.replaceChildren(...kinds[figure.dataset.kind](data, width, { generated, state }));
    figure.dataset.drawn = "";
  };
  const controls = figure.querySelector(".controls");
  for (const c of data.choices ?? []) {
    state[c.key] = c.start ?? 0;
    if (c.options.length > 1) controls.append(pick(c, state, () => draw(drawn)));
  }
  // The print width is A4 without margins.
  addEventListener("beforeprint", () => draw(680));
  addEventListener("afterprint", () => draw(Math.floor(picture.clientWidth)));
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && width !== drawn) draw(width);
  }).observe(picture);
}

startTheme();
const all = JSON.parse(document.getElementById("data").textContent);
for (const figure of document.querySelectorAll("figure[data-kind]")) startFigure(figure, all[figure.id]);
