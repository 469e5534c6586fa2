// There is one function for each kind of chart. It takes data and a width, and returns
// elements.
import * as Plot from "@observablehq/plot";
import { fan } from "./fan.js";
import { chart, grid, legend, logTicks, logX, logY, look, multiples, short } from "./parts.js";

// tooltips lists all methods at one x, best first.
function tooltips(series, xs, say) {
  return xs.map((x, i) => ({
    x,
    title: [
      say(x),
      ...series
        .map((s) => [s.name, s.y[i]])
        .filter(([, v]) => v !== null && v !== undefined)
        .sort((a, b) => a[1] - b[1])
        .map(([n, v]) => `${short(v)}  ${n}`),
    ].join("\n"),
  }));
}

function hover(rows) {
  return [
    Plot.ruleX(rows, Plot.pointerX({ x: "x", stroke: "var(--faint)", className: "under" })),
    Plot.tip(rows, Plot.pointerX({ x: "x", frameAnchor: "top", title: "title", fontSize: 12 })),
  ];
}

// lines draws one line per method over hours, steps or rounds.
function lines(d, width, {}) {
  const points = d.series.flatMap((s) => s.y.map((y, i) => ({ x: d.x[i], y, s })).filter((p) => p.y !== null));
  const sparse = d.x.length <= 40;
  const clip = Boolean(d.range);
  const ticks = d.log ? logTicks(...extent(points.map((p) => p.y)), 6) : 5;
  const svg = chart({
    width,
    height: Math.min(380, Math.max(240, width * 0.5)),
    marginLeft: 46,
    x: { label: d.xLabel, ticks: d.ticks ?? Math.max(3, Math.floor(width / 90)), tickFormat: d.clock ? (v) => String(v) : short, type: "linear", labelAnchor: "center", domain: d.domain, zero: d.fromZero ?? false },
    y: d.log ? { type: "log" } : { label: d.yLabel, nice: true, zero: d.zero ?? false, ticks, domain: d.range },
    marks: [
      ...(d.log ? [Plot.gridY(ticks, grid), logY(ticks, d.yLabel)] : [Plot.gridY({ ...grid, ticks })]),
      d.one ? Plot.ruleY([1], { stroke: "var(--ink)", strokeDasharray: "4 3" }) : null,
      d.rule ? Plot.ruleY([d.rule], { stroke: "var(--ink)", strokeDasharray: "4 3" }) : null,
      d.diagonal ? Plot.line([[0, 0], [100, 100]], { stroke: "var(--ink)", strokeDasharray: "4 3" }) : null,
      ...d.series.map((s) =>
        s.low
          ? Plot.areaY(
              d.x.map((x, i) => ({ x, lo: s.low[i], hi: s.high[i] })).filter((p) => p.lo !== null),
              { x: "x", y1: "lo", y2: "hi", fill: look(s.look).colour, fillOpacity: 0.18, clip },
            )
          : null,
      ),
      ...d.series.map((s) =>
        Plot.line(
          points.filter((p) => p.s === s),
          { x: "x", y: "y", stroke: look(s.look).colour, strokeWidth: 2, strokeDasharray: look(s.look).dash, clip },
        ),
      ),
      sparse ? Plot.dot(points, { x: "x", y: "y", symbol: (p) => look(p.s.look).symbol, fill: (p) => look(p.s.look).colour, stroke: "none", r: 3, clip }) : null,
      ...hover(tooltips(d.series, d.x, (x) => `${d.at?.[d.x.indexOf(x)] ?? `${d.xName} ${x}`}, ${d.yLabel.replace(/^[↑ ]+/, "")}`)),
    ],
    symbol: { type: "identity" },
    color: { type: "identity" },
  });
  return [legend(d.series, { dots: sparse }), svg];
}

function extent(values) {
  const some = values.filter((v) => v !== null && v > 0);
  return [Math.min(...some), Math.max(...some)];
}

// box draws one row per method, with a box, whiskers and one dot per client. If d.dense is set,
// it draws one row per building, with the mean as the dot.
function box(d, width, {}) {
  // In dense charts, the name is beside the box instead of above it, and there are no dots
  // below it.
  const row = d.dense ? 17 : 64;
  const half = d.dense ? 0.33 : 0.14;
  const left = d.dense ? Math.min(width * 0.4, 7 * Math.max(0, ...d.series.map((s) => s.name.length)) + 14) : 12;
  const unit = d.unit ? ` ${d.unit}` : "";
  const ticks = logTicks(...d.domain, Math.max(4, Math.floor((width - left) / 60)));
  const [lo, hi] = d.domain;
  const inside = (v) => v !== null && v >= lo && v <= hi;
  const clip = (v) => Math.min(hi, Math.max(lo, v));
  const rows = d.series.map((s, i) => ({ ...s, i, ...look(s.look) }));
  // Spread overlapping dots by a fixed pattern.
  const dots = rows.flatMap((s) => s.v.map((v, k) => ({ v, y: d.dense ? s.i : s.i + 0.3 + 0.14 * (((k * 0.618034) % 1) - 0.5) * 2, s, name: d.names[s.n[k]] }))).filter((p) => inside(p.v));
  return [
    chart({
      width,
      height: rows.length * row + 74,
      marginTop: 28,
      marginLeft: left,
      x: { type: "log", domain: d.domain },
      y: { domain: [-0.5, rows.length - 0.5], range: [28, rows.length * row + 28], axis: null },
      color: { type: "identity" },
      marks: [
        Plot.gridX(ticks, grid),
        logX(ticks, d.xLabel),
        d.one ? Plot.ruleX([1], { stroke: "var(--ink)", strokeDasharray: "4 3" }) : null,
        Plot.ruleY(rows, { y: (s) => s.i, x1: (s) => clip(s.q[0]), x2: (s) => clip(s.q[4]), stroke: "colour", strokeWidth: 1.5 }),
        Plot.rect(rows, { x1: (s) => clip(s.q[1]), x2: (s) => clip(s.q[3]), y1: (s) => s.i - half, y2: (s) => s.i + half, fill: "var(--paper)", stroke: "colour", strokeWidth: 1.5 }),
        Plot.rect(rows, { x1: (s) => clip(s.q[1]), x2: (s) => clip(s.q[3]), y1: (s) => s.i - half, y2: (s) => s.i + half, fill: "colour", fillOpacity: 0.2 }),
        Plot.ruleX(rows.filter((s) => inside(s.q[2])), { x: (s) => s.q[2], y1: (s) => s.i - half, y2: (s) => s.i + half, stroke: "colour", strokeWidth: 3.5 }),
        Plot.dot(dots, { x: "v", y: "y", r: 2.6, fill: (p) => p.s.colour, fillOpacity: 0.55 }),
        d.dense
          ? Plot.text(rows, { x: () => lo, y: (s) => s.i, dx: -6, text: "name", textAnchor: "end", fontSize: 11, lineWidth: (left - 8) / 11, textOverflow: "ellipsis-start", fill: "var(--ink)" })
          : Plot.text(rows, { x: () => lo, y: (s) => s.i - 0.34, text: "name", textAnchor: "start", fontWeight: 600, fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 4 }),
        // Both counts are at the right end of the line with the name. On the left, dots would
        // cover the text.
        Plot.text(rows.filter((s) => s.above + s.below > 0), { x: () => hi, y: (s) => s.i - 0.34, text: (s) => [s.below > 0 ? `← ${s.below} beyond` : "", s.above > 0 ? `${s.above} beyond →` : ""].filter(Boolean).join("   "), textAnchor: "end", fill: "var(--faint)", stroke: "var(--paper)", strokeWidth: 4 }),
        d.dense
          ? Plot.tip(rows, Plot.pointer({ x: (s) => clip(s.q[2]), y: "i", title: (s) => `${s.name}\n${d.value}: median ${short(s.q[2])}${unit}, mean ${short(s.v[0])}${unit}\nquartiles ${short(s.q[1])} to ${short(s.q[3])}${unit}\n5 to 95 %: ${short(s.q[0])} to ${short(s.q[4])}${unit}`, fontSize: 12 }))
          : Plot.tip(dots, Plot.pointer({ x: "v", y: "y", title: (p) => `${p.name}\n${p.s.name}: ${d.value} ${short(p.v)}${unit}`, fontSize: 12 })),
      ],
    }),
  ];
}

// convergence draws one chart per method with the distribution of the error over clients by
// round. It draws few rounds as boxes, and many as bands.
function convergence(d, width, {}) {
  const ticks = logTicks(d.domain[0], d.domain[1], 6);
  return [
    multiples(d.series, width, { least: 280, most: 3 }, (s, each) => {
      const rows = s.round.map((x, i) => ({ x, min: s.q[i][0], lo: s.q[i][1], mid: s.q[i][2], hi: s.q[i][3], max: s.q[i][4] }));
      const clip = (v) => Math.min(d.domain[1], Math.max(d.domain[0], v));
      const [first, last] = d.own ? [rows[0].x, rows[rows.length - 1].x] : d.rounds;
      const colour = look(s.look).colour;
      const gap = rows.length > 1 ? Math.min(...rows.slice(1).map((r, i) => r.x - rows[i].x)) : 1;
      // Limit boxes to 36 px.
      const half = Math.min(gap * 0.3, (18 / each) * (last - first + gap));
      const boxes = rows.length <= 24;
      const shapes = boxes
        ? [
            Plot.ruleX(rows, { x: "x", y1: (r) => clip(r.min), y2: (r) => clip(r.max), stroke: colour }),
            Plot.rect(rows, { x1: (r) => r.x - half, x2: (r) => r.x + half, y1: (r) => clip(r.lo), y2: (r) => clip(r.hi), fill: "var(--paper)", stroke: colour }),
            Plot.rect(rows, { x1: (r) => r.x - half, x2: (r) => r.x + half, y1: (r) => clip(r.lo), y2: (r) => clip(r.hi), fill: colour, fillOpacity: 0.2 }),
            Plot.ruleY(rows, { y: (r) => clip(r.mid), x1: (r) => r.x - half, x2: (r) => r.x + half, stroke: colour, strokeWidth: 2.5 }),
          ]
        : [
            Plot.areaY(rows, { x: "x", y1: (r) => clip(r.min), y2: (r) => clip(r.max), fill: colour, fillOpacity: 0.12 }),
            Plot.areaY(rows, { x: "x", y1: (r) => clip(r.lo), y2: (r) => clip(r.hi), fill: colour, fillOpacity: 0.3 }),
            Plot.line(rows, { x: "x", y: (r) => clip(r.mid), stroke: colour, strokeWidth: 2 }),
          ];
      return chart({
          width: each,
        height: 230,
        marginLeft: 44,
        x: { label: "rounds done", domain: [first - (boxes ? gap / 2 : 0), last + (boxes ? gap / 2 : 0)], ticks: 5, tickFormat: (v) => (Number.isInteger(v) ? String(v) : ""), labelAnchor: "center" },
        y: { type: "log", domain: d.domain },
        marks: [
          Plot.gridY(ticks, grid),
          logY(ticks, d.yLabel),
          Plot.ruleY([1], { stroke: "var(--ink)", strokeDasharray: "4 3" }),
          ...shapes,
          Plot.tip(
            rows,
            Plot.pointerX({
              x: "x",
              y: (r) => clip(r.mid),
              title: (r) => `after ${r.x} rounds\nmedian ${short(r.mid)}\nquartiles ${short(r.lo)} to ${short(r.hi)}\nextremes ${short(r.min)} to ${short(r.max)}`,
              fontSize: 12,
            }),
          ),
        ],
      });
    }),
  ];
}

// cost draws the traffic and the error of each method.
function cost(d, width, {}) {
  const height = Math.min(400, Math.max(280, width * 0.55));
  const some = d.points.map((p) => p.x).filter((x) => x > 0);
  const wide = some.length > 1 && Math.max(...some) / Math.min(...some) > 30;
  const right = Math.min(170, Math.max(...d.points.map((p) => p.name.length)) * 7 + 14);
  const [least, most] = extent(d.points.flatMap((p) => [p.low, p.high]));
  const log = most > 8 * least;
  const ticks = log ? logTicks(least, most, 6) : 5;
  const options = (marks, marginRight = right) => ({
    width,
    height,
    marginLeft: 46,
    marginRight,
    x: { insetLeft: 12, label: d.xLabel, type: wide ? "symlog" : "linear", constant: wide ? Math.min(...some) : undefined, zero: true, nice: true, ticks: Math.min(5, Math.max(2, Math.floor((width - 46 - marginRight) / 60))), tickFormat: short, labelAnchor: "center" },
    y: log ? { type: "log" } : { label: "↑ median relative MAE, test split", nice: true, ticks, tickFormat: short },
    symbol: { type: "identity" },
    color: { type: "identity" },
    marks,
  });
  const base = [
    ...(log ? [Plot.gridY(ticks, grid), logY(ticks, "↑ median relative MAE, test split")] : [Plot.gridY({ ...grid, ticks })]),
    Plot.ruleY([1], { stroke: "var(--ink)", strokeDasharray: "4 3" }),
    Plot.ruleX(d.points, { x: "x", y1: "low", y2: "high", stroke: (p) => look(p.look).colour, strokeWidth: 1.5 }),
    Plot.dot(d.points, { x: "x", y: "y", symbol: (p) => look(p.look).symbol, fill: (p) => (p.look < 0 ? "none" : look(p.look).colour), stroke: (p) => look(p.look).colour, strokeWidth: 1.5, r: 5.5 }),
  ];
  // Names are beside the dots. Overlapping names move down, and up again if they reach the
  // axis. If there are too many names, a legend replaces them.
  const scales = chart(options(base));
  const x = scales.scale("x").apply;
  const y = scales.scale("y").apply;
  const labels = d.points.map((p) => ({ p, x: x(p.x), y: y(p.y), at: y(p.y), w: p.name.length * 6.6 + 16 })).sort((a, b) => a.at - b.at);
  const meet = (a, b) => b.x < a.x + a.w && a.x < b.x + b.w;
  for (let i = 1; i < labels.length; i++) for (let j = 0; j < i; j++) if (meet(labels[j], labels[i])) labels[i].at = Math.max(labels[i].at, labels[j].at + 14);
  for (let i = labels.length - 1; i >= 0; i--) {
    labels[i].at = Math.min(labels[i].at, height - 44);
    for (let j = i + 1; j < labels.length; j++) if (meet(labels[i], labels[j])) labels[i].at = Math.min(labels[i].at, labels[j].at - 14);
  }
  const crowded = labels.some((l) => l.at < 20);
  const svg = chart(
    options(
      [
        ...base,
        ...(crowded ? [] : labels.map((l) => Plot.text([l.p], { x: "x", y: "y", text: "name", dx: 11, dy: l.at - l.y, textAnchor: "start", fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3 }))),
        Plot.tip(d.points, Plot.pointer({ x: "x", y: "y", title: (p) => `${p.name}\n${short(p.x)} MB, median relative MAE ${short(p.y)}${p.low < p.high ? `\nseeds ${short(p.low)} to ${short(p.high)}` : ""}`, fontSize: 12 })),
      ],
      crowded ? 16 : right,
    ),
  );
  return crowded ? [legend(d.points, { lines: false }), svg] : [svg];
}

// fleet draws the mean and the standard deviation of each client's load.
function fleet(d, width, {}) {
  const pad = (a) => [Math.min(...a) / 1.25, Math.max(...a) * 1.25];
  const dx = pad(d.x);
  const dy = pad(d.y);
  const xt = logTicks(...dx, Math.max(3, Math.floor(width / 80)));
  const yt = logTicks(...dy, 6);
  const rows = d.x.map((x, i) => ({ x, y: d.y[i], name: d.names[i] }));
  // Within the frame, the ratio of standard deviation to mean is constant along these lines.
  const rays = [1, 0.1]
    .map((r) => ({ r, a: Math.max(dx[0], dy[0] / r), b: Math.min(dx[1], dy[1] / r) }))
    .filter((l) => l.a < l.b);
  return [
    chart({
      width,
      height: Math.min(420, Math.max(280, width * 0.6)),
      marginLeft: 50,
      x: { type: "log", domain: dx },
      y: { type: "log", domain: dy },
      marks: [
        Plot.gridX(xt, grid),
        Plot.gridY(yt, grid),
        logX(xt, "mean load in the training period, kW"),
        logY(yt, "↑ standard deviation, kW"),
        ...rays.map((l) => Plot.line([[l.a, l.a * l.r], [l.b, l.b * l.r]], { stroke: "var(--faint)", strokeDasharray: "4 3" })),
        ...rays.map((l) => Plot.text([[l.a ** 0.15 * l.b ** 0.85, l.r * l.a ** 0.15 * l.b ** 0.85]], { text: [l.r === 1 ? "std. deviation = mean" : "std. deviation = mean / 10"], textAnchor: "end", dx: -4, dy: -6, fill: "var(--faint)", stroke: "var(--paper)", strokeWidth: 3 })),
        Plot.dot(rows, { x: "x", y: "y", r: rows.length > 300 ? 2 : 3.5, fill: "var(--s0)", fillOpacity: rows.length > 300 ? 0.4 : 0.65 }),
        Plot.tip(rows, Plot.pointer({ x: "x", y: "y", title: (p) => `${p.name}\nmean ${short(p.x)} kW\nstandard deviation ${short(p.y)} kW`, fontSize: 12 })),
      ],
    }),
  ];
}

// heat draws one value per pair of settings. Stronger colours mean lower values.
function heat(d, width, {}) {
  const bins = 7;
  const all = d.values.flat().filter((v) => v !== null);
  const [lo, hi] = [Math.min(...all), Math.max(...all)];
  const log = lo > 0 && hi / lo > 3;
  const f = log ? Math.log : (v) => v;
  const bin = (v) => (hi > lo ? Math.min(bins - 1, Math.floor(((f(v) - f(lo)) / (f(hi) - f(lo))) * bins)) : 0);
  const cells = d.values.flatMap((r, j) => r.map((v, i) => ({ x: d.x[i], y: d.y[j], v })));
  const best = cells.filter((c) => c.v === lo);
  const left = Math.max(52, Math.max(...d.y.map((s) => s.length)) * 7.5 + 34);
  const size = Math.max(26, Math.min(52, (Math.min(width, 640) - left) / d.x.length));
  const svg = chart({
    width: Math.min(width, Math.max(260, left + 16 + d.x.length * Math.min(90, (width - left - 16) / d.x.length))),
    height: d.y.length * size + 72,
    marginLeft: left,
    marginTop: 32,
    x: { type: "band", domain: d.x, label: d.xLabel, padding: 0.04, labelAnchor: "center" },
    y: { type: "band", domain: d.y, label: d.yLabel, padding: 0.04 },
    color: { type: "identity" },
    marks: [
      Plot.cell(cells, { x: "x", y: "y", fill: (c) => (c.v === null ? "transparent" : `var(--h${bin(c.v)})`), stroke: (c) => (c.v === null ? "var(--grid)" : "none") }),
      Plot.cell(best, { x: "x", y: "y", fill: "none", stroke: "var(--ink)", strokeWidth: 2.5 }),
      Plot.text(cells, { x: "x", y: "y", text: (c) => (c.v === null ? "–" : short(c.v)), fill: (c) => (c.v === null ? "var(--faint)" : `var(--t${bin(c.v)})`), fontWeight: (c) => (c.v === lo ? 700 : 400), fontSize: width < 420 || d.x.length > 8 ? 10 : 12 }),
      Plot.tip(cells, Plot.pointer({ x: "x", y: "y", title: (c) => `${d.xLabel} ${c.x}\n${d.yLabel} ${c.y}\n${d.value} ${short(c.v)}`, fontSize: 12 })),
    ],
  });
  const scale = document.createElement("p");
  scale.className = "scale";
  scale.append(`${d.value}: ${short(lo)} `);
  for (let i = 0; i < bins; i++) {
    const s = document.createElement("span");
    s.style.background = `var(--h${i})`;
    scale.append(s);
  }
  scale.append(` ${short(hi)}${log ? " (log scale)" : ""}`);
  return [svg, scale];
}

export const kinds = { lines, box, convergence, fan, cost, fleet, heat };
