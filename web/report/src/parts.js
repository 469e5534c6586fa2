// Shared parts of the charts: styles of methods, number formats, legends, selections.
import * as Plot from "@observablehq/plot";

const colours = 6;
const dashes = ["", "7 3", "2 3", "9 3 2 3"];
const symbols = ["circle", "triangle", "square", "diamond", "cross", "star", "wye"];

// look returns the style of a method. Styles never differ by colour alone.
export function look(i) {
  // The baselines are the strongest one and last week's profile.
  if (i === -2) return { colour: "var(--faint)", dash: "1 3", symbol: "times" };
  if (i < 0) return { colour: "var(--base)", dash: "6 3", symbol: "times" };
  return { colour: `var(--s${i % colours})`, dash: dashes[Math.floor(i / colours) % dashes.length], symbol: symbols[i % symbols.length] };
}

// short formats a number with three or four digits, and avoids exponents.
export function short(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return "none";
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (a >= 1e6 || a < 1e-4) return v.toExponential(1).replace("e+", "e");
  if (a >= 1000) return v.toFixed(0);
  return String(Number(v.toPrecision(3)));
}

// logTicks returns at most about n round numbers between lo and hi.
export function logTicks(lo, hi, n) {
  for (const steps of [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
    const all = [];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++)
      for (const s of steps) {
        const v = Number((s * 10 ** e).toPrecision(2));
        if (v >= lo && v <= hi) all.push(v);
      }
    if (all.length <= n && all.length > 1) return all;
    if (steps.length === 1) {
      const every = Math.ceil(all.length / n);
      return all.filter((_, i) => i % every === 0);
    }
  }
  return [];
}

// chart calls Plot.plot with the options that all charts share.
export function chart({ marks, ...options }) {
  return Plot.plot({
    marginTop: 24,
    marginRight: 16,
    marginBottom: 38,
    style: { background: "transparent", color: "var(--ink)", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    ...options,
    marks,
  });
}

export const grid = { stroke: "var(--grid)", strokeOpacity: 1 };

// logX and logY are axes that label every tick. Plot alone would omit labels.
export const logX = (ticks, label) => Plot.axisX(ticks, { text: short, label, labelAnchor: "center" });
export const logY = (ticks, label) => Plot.axisY(ticks, { text: short, label });

// legend lists the methods with line, symbol and name.
export function legend(series, { lines = true, dots = true } = {}) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const s of series) {
    const l = look(s.look);
    const item = document.createElement("li");
    item.append(
      Plot.plot({
        width: 26,
        height: 12,
        margin: 0,
        x: { domain: [0, 26], range: [0, 26], axis: null },
        y: { domain: [0, 12], range: [0, 12], axis: null },
        marks: [
          lines ? Plot.ruleY([6], { x1: 1, x2: 25, stroke: l.colour, strokeWidth: 2, strokeDasharray: l.dash }) : null,
          dots ? Plot.dot([[13, 6]], { symbol: l.symbol, fill: l.colour, stroke: l.colour, r: 3.5 }) : null,
        ],
        ariaHidden: true,
      }),
      s.name,
    );
    list.append(item);
  }
  return list;
}

// multiples arranges small charts in as many columns as fit.
export function multiples(items, width, { least = 270, most = 3 }, draw) {
  const columns = Math.max(1, Math.min(most, items.length, Math.floor((width + 16) / (least + 16))));
  const each = Math.floor((width - 16 * (columns - 1)) / columns);
  const box = document.createElement("div");
  box.className = "multiples";
  box.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  for (const item of items) {
    const cell = document.createElement("div");
    const title = document.createElement("p");
    title.textContent = item.name;
    cell.append(title, draw(item, each));
    box.append(cell);
  }
  return box;
}
