// The chart of load and forecasts, with zoom and a choice of dates. It first shows the median,
// the best and the worst client, and any other client on request. Times are shifted to the
// dataset's clock and drawn on a UTC scale, so that every browser shows the same times.
import * as Plot from "@observablehq/plot";
import { chart, grid, short } from "./parts.js";

const day = 86400;

// clock returns functions that convert between Unix seconds and dates of the dataset's clock.
function clock(offsets) {
  const at = (t) => offsets.findLast(([from]) => from <= t)?.[1] ?? offsets[0]?.[1] ?? 0;
  return {
    local: (t) => new Date((t + at(t)) * 1000),
    // Near a clock change, the offset can be wrong by an hour, which does not matter for the
    // window of a chart.
    unix: (date) => Math.round(+date / 1000) - at(Math.round(+date / 1000)),
  };
}

// span returns the first and the last time of all clients.
function span(d) {
  return [Math.min(...d.clients.map((c) => c.start)), Math.max(...d.clients.map((c) => c.start + c.y.length * d.interval))];
}

const isoDay = (date) => date.toISOString().slice(0, 10);

// beginFan sets the initial window: the newest week, from midnight to midnight, in which the
// first (median) client has nine tenths of its loads and forecasts. If there is no such week,
// it chooses the week with the most.
export function beginFan(d, state) {
  const c = clock(d.offsets);
  const [from, to] = span(d);
  const { start, y } = d.clients[0];
  const f = d.methods[0].leads[0].f[0];
  const known = [0]; // number of earlier steps with a load and a forecast, by step
  for (let k = 0; k < y.length; k++) known.push(known[k] + (y[k] !== null && f[k] !== null && f[k] !== undefined ? 1 : 0));
  const step = (t) => Math.max(0, Math.min(y.length, Math.ceil((t - start) / d.interval)));
  const length = Math.min(7 * day, to - from);
  state.from = Math.max(from, to - length);
  let most = -1;
  for (let date = Math.floor(+c.local(to - length) / 864e5); c.unix(new Date(date * 864e5)) >= from; date--) {
    const at = c.unix(new Date(date * 864e5));
    const n = known[step(at + length)] - known[step(at)];
    if (n > most) [most, state.from] = [n, at];
    if (n >= (0.9 * length) / d.interval) break;
  }
  state.to = Math.min(to, state.from + length);
  state.lead = 0;
  state.method = 0;
  state.client = null;
}

function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== null && v !== false) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children);
  return e;
}

function labelled(text, control) {
  return element("label", {}, element("span", {}, text), control);
}

// fanControls returns the controls above the chart.
export function fanControls(d, state, draw, id) {
  const c = clock(d.offsets);
  const [first, last] = span(d);
  const move = (from, to) => {
    const length = Math.min(to - from, last - first);
    state.from = Math.max(first, Math.min(from, last - length));
    state.to = state.from + length;
    sync();
    draw();
  };
  const said = element("span", { role: "status", class: "found" });
  const options = element("datalist", { id: `${id}-clients` });
  for (const name of d.all.names) options.append(element("option", { value: name }));
  const find = element("input", { type: "search", list: `${id}-clients`, placeholder: `one of ${d.all.names.length}`, autocomplete: "off", spellcheck: "false" });
  const search = () => {
    const typed = find.value.trim();
    const lower = typed.toLowerCase();
    let i = d.all.names.indexOf(typed);
    if (i < 0 && typed) i = d.all.names.findIndex((n) => n.toLowerCase().includes(lower));
    state.client = null;
    if (!typed) said.textContent = "";
    else if (i < 0) said.textContent = `No client is named ${typed}.`;
    else {
      const name = d.all.names[i];
      const shown = d.clients.findIndex((x) => x.name === name);
      said.textContent = `${name}: error ${short(d.all.nmae[i])} % of mean load, relative MAE ${short(d.all.relative[i])} against ${d.all.reference}.${shown < 0 ? " Its curves are not in this page." : ""}`;
      if (shown >= 0) state.client = shown;
    }
    draw();
  };
  find.addEventListener("change", search);
  find.addEventListener("input", () => {
    if (!find.value || d.all.names.includes(find.value)) search();
  });
  const date = element("input", { type: "date", min: isoDay(c.local(first)), max: isoDay(c.local(last - 1)) });
  date.addEventListener("change", () => {
    if (!date.value) return;
    const from = c.unix(new Date(`${date.value}T00:00:00Z`));
    move(from, from + (state.to - state.from));
  });
  const length = element("select", {});
  for (const [days, name] of [[1, "1 day"], [3, "3 days"], [7, "7 days"], [14, "14 days"], [0, "all"]])
    if (days * day < last - first) length.append(element("option", { value: days }, name));
  length.append(element("option", { value: -1, hidden: true }, "zoomed"));
  length.addEventListener("change", () => {
    const n = Number(length.value);
    if (n > 0) move(state.from, state.from + n * day);
    else if (n === 0) move(first, last);
  });
  const step = (sign) => () => move(state.from + sign * (state.to - state.from), state.to + sign * (state.to - state.from));
  const sync = () => {
    date.value = isoDay(c.local(state.from));
    const days = (state.to - state.from) / day;
    const fits = [...length.options].find((o) => Number(o.value) === days) ?? (state.from <= first && state.to >= last ? [...length.options].find((o) => o.value === "0") : null);
    length.value = fits ? fits.value : "-1";
  };
  sync();
  state.zoom = (from, to) => move(from, to);
  state.out = () => move(first, last);
  const pick = (key, label, names) => {
    const select = element("select", {});
    names.forEach((n, i) => select.append(element("option", { value: i }, n)));
    select.addEventListener("change", () => {
      state[key] = Number(select.value);
      draw();
    });
    return labelled(label, select);
  };
  return [
    labelled("Client", find),
    options,
    labelled("From", date),
    labelled("Show", length),
    element("span", { class: "steps" }, element("button", { type: "button", "aria-label": "Earlier", onclick: step(-1) }, "←"), element("button", { type: "button", "aria-label": "Later", onclick: step(1) }, "→")),
    ...(d.leads.length > 1 ? [pick("lead", "Lead", d.leads)] : []),
    ...(d.names.length > 1 ? [pick("method", "Method", d.names)] : []),
    said,
  ];
}

function key(d, method, banded) {
  const list = element("ul", { class: "legend" });
  const entries = [
    ["load", "var(--ink)", ""],
    [`forecast by ${method.name}, ${d.leads.length === 1 ? d.leads[0] : "chosen lead"}`, "var(--fore)", ""],
    ...(banded ? [["P10 to P90", "var(--fore)", "band"]] : []),
    ["last week", "var(--faint)", "1 3"],
    ...(d.base && d.base.name !== "naive-week" ? [[`${d.base.name}, the strongest baseline`, "var(--base)", "6 3"]] : []),
  ];
  for (const [name, colour, dash] of entries)
    list.append(
      element(
        "li",
        {},
        Plot.plot({ width: 26, height: 12, margin: 0, x: { domain: [0, 1], axis: null }, y: { domain: [0, 1], axis: null }, marks: [Plot.ruleY([0.5], dash === "band" ? { stroke: colour, strokeWidth: 10, strokeOpacity: 0.22 } : { stroke: colour, strokeWidth: 2, strokeDasharray: dash })], ariaHidden: true }),
        name,
      ),
    );
  return list;
}

// rowsOf returns the rows of a client within the window, in kW.
export function rowsOf(d, i, state) {
  const c = d.clients[i];
  const lead = d.methods[state.method].leads[state.lead];
  const base = d.base?.leads[state.lead].f[i];
  const { local } = clock(d.offsets);
  const kw = (values, k) => (values?.[k] ?? null) === null ? null : values[k] * c.unit;
  const rows = [];
  const first = Math.max(0, Math.floor((state.from - c.start) / d.interval));
  const last = Math.min(c.y.length - 1, Math.ceil((state.to - c.start) / d.interval));
  for (let k = first; k <= last; k++)
    rows.push({ t: local(c.start + k * d.interval), y: kw(c.y, k), f: kw(lead.f[i], k), l: kw(lead.l?.[i], k), h: kw(lead.h?.[i], k), w: kw(c.w, k), b: kw(base, k) });
  return rows;
}

// brush lets a drag across the chart choose the window.
function brush(svg, x, state, d) {
  const { unix } = clock(d.offsets);
  let start = null;
  let box = null;
  const at = (e) => {
    const r = svg.getBoundingClientRect();
    return ((e.clientX - r.left) / r.width) * svg.viewBox.baseVal.width;
  };
  const stop = () => {
    start = null;
    box?.remove();
    box = null;
  };
  svg.style.touchAction = "pan-y";
  svg.addEventListener(
    "pointerdown",
    (e) => {
      if (e.button !== 0) return;
      e.stopImmediatePropagation(); // otherwise, Plot would pin the tooltip
      start = at(e);
      svg.setPointerCapture?.(e.pointerId);
    },
    true,
  );
  svg.addEventListener("pointermove", (e) => {
    if (start === null) return;
    const now = at(e);
    if (!box) {
      if (Math.abs(now - start) < 6) return;
      box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      box.setAttribute("fill", "var(--link)");
      box.setAttribute("fill-opacity", "0.15");
      box.setAttribute("y", 0);
      box.setAttribute("height", svg.viewBox.baseVal.height - 30);
      svg.append(box);
    }
    box.setAttribute("x", Math.min(start, now));
    box.setAttribute("width", Math.abs(now - start));
  });
  svg.addEventListener("pointerup", (e) => {
    const [from, to, drawn] = [Math.min(start, at(e)), Math.max(start, at(e)), box];
    stop();
    if (!drawn || to - from < 6) return;
    const [a, b] = [unix(x.invert(from)), unix(x.invert(to))];
    if (b - a >= 3 * d.interval) state.zoom(a, b);
  });
  svg.addEventListener("pointercancel", stop);
  svg.addEventListener("dblclick", () => state.out());
}

const stamp = (t) => `${["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"][t.getUTCDay()]} ${t.toISOString().slice(0, 16).replace("T", " ")}`;

// fan draws three charts, the chosen client's first.
export function fan(d, width, { state }) {
  const method = d.methods[state.method];
  const banded = Boolean(method.leads[state.lead].l);
  let shown = d.clients.map((c, i) => i).filter((i) => d.clients[i].role);
  if (shown.length === 0) shown = [0];
  if (state.client !== null) shown = [state.client, ...shown.filter((i) => i !== state.client)].slice(0, 3);
  const { local } = clock(d.offsets);
  const days = (state.to - state.from) / day;
  const box = element("div", { class: "fans" });
  shown.forEach((i, n) => {
    const c = d.clients[i];
    const rows = rowsOf(d, i, state);
    const last = n === shown.length - 1;
    const value = (v) => (v === null ? "none" : `${short(v)} kW`);
    const svg = chart({
      width,
      height: Math.max(155, Math.min(225, width * 0.22)) + (last ? 14 : 0),
      marginLeft: 46,
      marginTop: 16,
      marginBottom: last ? 38 : 24,
      x: { type: "utc", domain: [local(state.from), local(state.to)], label: last ? `local time, ${d.zone}` : null, ticks: Math.max(3, Math.min(Math.floor(width / 95), days <= 3 ? 12 : Math.ceil(days))), labelAnchor: "center" },
      y: { label: null, ticks: 4, nice: true, tickFormat: short },
      marks: [
        Plot.gridY({ ...grid, ticks: 4 }),
        // Draw an area for each stretch without a gap.
        banded ? Plot.areaY(rows, { x: "t", y1: (r) => r.l ?? NaN, y2: (r) => r.h ?? NaN, fill: "var(--fore)", fillOpacity: 0.2, clip: true }) : null,
        Plot.line(rows, { x: "t", y: (r) => r.w ?? NaN, stroke: "var(--faint)", strokeDasharray: "1 3", strokeWidth: 1.4, clip: true }),
        d.base && d.base.name !== "naive-week" ? Plot.line(rows, { x: "t", y: (r) => r.b ?? NaN, stroke: "var(--base)", strokeDasharray: "6 3", strokeWidth: 1.3, clip: true }) : null,
        Plot.line(rows, { x: "t", y: (r) => r.f ?? NaN, stroke: "var(--fore)", strokeWidth: 1.8, clip: true }),
        Plot.line(rows, { x: "t", y: (r) => r.y ?? NaN, stroke: "var(--ink)", strokeWidth: 1.5, clip: true }),
        Plot.ruleX(rows, Plot.pointerX({ x: "t", stroke: "var(--faint)", className: "under" })),
        Plot.tip(
          rows,
          Plot.pointerX({
            x: "t",
            frameAnchor: "top",
            title: (r) =>
              [
                stamp(r.t),
                `load ${value(r.y)}`,
                `forecast ${value(r.f)}${r.l === null ? "" : ` (${short(r.l)} to ${short(r.h)})`}`,
                `last week ${value(r.w)}`,
                ...(d.base && d.base.name !== "naive-week" ? [`${d.base.name} ${value(r.b)}`] : []),
              ].join("\n"),
            fontSize: 12,
          }),
        ),
      ],
    });
    brush(svg, svg.scale("x"), state, d);
    const role = state.client === i ? "chosen client" : c.role;
    box.append(element("div", {}, element("p", {}, role ? element("em", {}, role) : "", ` ${c.name}`, element("em", {}, ", kW")), svg));
  });
  return [key(d, method, banded), box];
}

// fanTable returns the rows that the chart shows, for a CSV file.
export function fanTable(d, state) {
  const rows = [["client", "local_time", "load_kw", "forecast_kw", "p10_kw", "p90_kw", "last_week_kw", ...(d.base ? [`${d.base.name}_kw`] : [])]];
  d.clients.forEach((c, i) => {
    if (!(c.role || state.client === i)) return;
    for (const r of rowsOf(d, i, state)) rows.push([c.name, r.t.toISOString().slice(0, 16), r.y, r.f, r.l, r.h, r.w, ...(d.base ? [r.b] : [])]);
  });
  return rows;
}
