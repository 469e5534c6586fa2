import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { between, get, type Clients as List, type Forecast, type Quality, type Score, type Series } from "../agentapi";
import { axis, Chart, colour, Key } from "../chart";
import { better, count, fixed, load, local, localDay, localHour, n, none, offset, percent, seconds, utc } from "../format";
import { link } from "../router";
import { Receiving } from "./agentclients";
import { Dots, Empty, Failure, Figures, Generated, Section, State, Table, Time, useAsk, useTitle, Waiting } from "../ui";

const week = 7 * 86400;
const ranges = [1, 7, 28];
const leads = ["1h", "6h", "24h"];
const sources: Record<string, string> = { model: "the client's own model", generic: "the shared model", median: "the median of the last 28 days", week: "last week's load", day: "yesterday's load", last: "the last load", none: "nothing" };

type Seen = { forecast?: Forecast; readings: Series; issued?: Series; scores: Score[]; quality?: Quality; from: number; anchor: number; lead: string };

// optional returns undefined if the agent responds that there is none yet.
const optional = <T,>(p: Promise<T>): Promise<T | undefined> => p.catch((e) => { if (e.status === 404 || e.status === 422) return undefined; throw e; });

// fetchAll fetches what the page shows. If the user has not chosen a lead, it uses the longest lead at which at least
// half of the past steps with any forecast were forecast, because a model that forecasts 24 h has hardly any forecasts
// 24 h ahead.
async function fetchAll(name: string, days: number, chosen: string, list: List): Promise<Seen> {
  const own = encodeURIComponent(name), step = seconds(list.step) || 900;
  const known = list.clients.find((c) => c.client === name);
  const forecast = await optional(get<Forecast>(`forecasts/${own}`));
  // The newest load determines the end of the chart, because the browser's clock may differ from the agent's.
  const cutoff = forecast?.cutoff ?? known?.newest_reading;
  const anchor = cutoff ? Date.parse(cutoff) / 1000 : Math.floor(Date.now() / 1000 / step) * step;
  const from = Math.floor((anchor - days * 86400) / step) * step;
  const [readings, issued, scores, quality] = await Promise.all([
    between(`readings/${own}`, from - week - 7200, anchor + step, step),
    Promise.all((chosen ? [chosen] : leads).map((lead) => optional(between(`forecasts/${own}/issued`, from, anchor, step, { lead })))),
    optional(get<{ scores: Score[] }>(`scores/${own}`)),
    optional(get<Quality>(`quality/${own}`)),
  ]);
  const known50 = issued.map((s) => s?.values.P50?.filter((y) => y != null).length ?? 0);
  const best = chosen ? 0 : Math.max(known50.findLastIndex((k) => k > 0 && 2 * k >= Math.max(...known50)), 0);
  return { forecast, readings, issued: issued[best], scores: scores?.scores ?? [], quality, from, anchor, lead: chosen || leads[best]! };
}

type Grid = { data: uPlot.AlignedData; source: (string | undefined)[]; gaps: [number, number][]; mean: number | null; known: number; week: number; step: number };

// grid assigns all values to the steps of the chart. Missing values stay null, so that the chart shows a gap.
function grid(s: Seen, step: number, zone: string): Grid {
  const times = s.forecast?.values.time ?? [];
  const end = times.length ? Date.parse(times.at(-1)!) / 1000 : s.anchor;
  const size = Math.max(Math.round((end - s.from) / step) + 1, 1);
  const at = (iso: string) => Math.round((Date.parse(iso) / 1000 - s.from) / step);
  const column = () => new Array<number | null>(size).fill(null);
  const x = Array.from({ length: size }, (_, i) => s.from + i * step);
  const actual = column(), p10 = column(), p50 = column(), p90 = column(), before = column();
  const source = new Array<string | undefined>(size);
  const readings = new Map<number, number>();
  s.readings.values.time.forEach((t, i) => {
    const y = s.readings.values.load![i];
    if (y != null) readings.set(at(t), y);
  });
  for (const series of [s.issued, s.forecast]) {
    series?.values.time.forEach((t, j) => {
      const i = at(t);
      if (i < 0 || i >= size) return;
      p10[i] = series.values.P10?.[j] ?? null;
      p50[i] = series.values.P50?.[j] ?? null;
      p90[i] = series.values.P90?.[j] ?? null;
      source[i] = series.values.source?.[j];
    });
  }
  for (let i = 0; i < size; i++) {
    actual[i] = readings.get(i) ?? null;
    const t = x[i]!;
    const past = t - week + offset(1000 * t, zone) - offset(1000 * (t - week), zone); // the same clock time
    before[i] = readings.get(Math.round((past - s.from) / step)) ?? null;
  }
  const known = Math.min(Math.round((s.anchor - s.from) / step), size);
  const gaps: [number, number][] = [];
  // Steps before a meter's first reading are not missing.
  const begin = s.readings.values.time.findIndex((_t, i) => s.readings.values.load![i] != null);
  const first = begin < 0 ? known : Math.max(at(s.readings.values.time[begin]!), 0);
  for (let i = first; i < known; i++) {
    if (actual[i] != null) continue;
    const g = gaps.at(-1);
    if (g && g[1] === i) g[1] = i + 1;
    else gaps.push([i, i + 1]);
  }
  const measured = actual.filter((y): y is number => y != null);
  const mean = measured.length ? measured.reduce((a, b) => a + b, 0) / measured.length : null;
  return { data: [x, p90, p10, before, p50, actual], source, gaps, mean, known, week: before.filter((y) => y != null).length, step };
}

type Props = { name: string; list: List; heard: number };

export function ClientPage(props: Props) {
  useTitle(props.name);
  if (props.list.clients.some((c) => c.client === props.name)) return <Known {...props} />;
  return (
    <>
      <p class="crumb"><a href="#/">Clients</a></p>
      <h1>{props.name}</h1>
      <Failure error={new Error(`There is no client ${props.name} here. The list has all clients and groups of this agent.`)} />
    </>
  );
}

function Known({ name, list, heard }: Props) {
  const [days, range] = useState(7);
  const [chosen, choose] = useState("");
  const known = list.clients.find((c) => c.client === name);
  const asked = useAsk(() => fetchAll(name, days, chosen, list), [name, days, chosen]);
  // Fetch again after a new forecast or a new reading, not at every tick of the clock.
  const stamp = `${known?.cutoff} ${known?.newest_reading}`;
  const first = useRef(stamp);
  useEffect(() => {
    if (first.current === stamp) return;
    first.current = stamp;
    asked.again();
  }, [stamp, heard]);
  const zone = list.timezone, seen = asked.value;
  if (!seen) return <><p class="crumb"><a href="#/">Clients</a></p><h1>{name}</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const f = seen.forecast, step = seconds(seen.readings.step || list.step) || 900;
  return (
    <>
      <p class="crumb"><a href="#/">Clients</a></p>
      <div class="head">
        <div>
          <h1>{name}</h1>
          <p class="sub">
            <Dots parts={[
              known?.receiving && <Receiving of={known} zone={zone} />,
              known?.quality && !known.receiving && <State of={known.quality}>quality {known.quality}</State>,
              known?.source && !known.receiving && <>forecast from {sources[known.source] ?? known.source}{f?.model.release ? `, ${f.model.release}` : ""}</>,
              f && !known?.receiving && <>cutoff <Time ms={Date.parse(f.cutoff)} zone={zone} />, made <Time ms={Date.parse(f.issued)} zone={zone} /></>,
              zone,
              !known?.members && <a href={link([name, "audit"])}>what its updates reveal</a>,
            ]} />
          </p>
        </div>
        <div class="buttons">
          <Choice label="Range" of={ranges.map((d) => [String(d), `${d} d`])} value={String(days)} set={(v) => range(Number(v))} />
          <Choice label="Lead of past forecasts" of={leads.map((l) => [l, `lead ${l.replace("h", " h")}`])} value={seen.lead} set={choose} />
        </div>
      </div>
      <Generated when={seen.readings.generated} />
      <Failure error={asked.error} again={asked.again} />
      <Fan key={name} seen={seen} zone={zone} step={step} days={days} lead={seen.lead} />
      <Scores scores={seen.scores} days={days} mean={grid(seen, step, zone).mean} />
      <div class="two">
        <Tomorrow f={f} zone={zone} />
        <Problems q={seen.quality} zone={zone} />
      </div>
    </>
  );
}

const Choice = ({ label, of, value, set }: { label: string; of: [string, string][]; value: string; set: (v: string) => void }) => (
  <div class="choice" role="group" aria-label={label}>
    {of.map(([id, text]) => <button key={id} type="button" aria-pressed={id === value} onClick={() => set(id)}>{text}</button>)}
  </div>
);

function Fan({ seen, zone, step, days, lead }: { seen: Seen; zone: string; step: number; days: number; lead: string }) {
  const g = useMemo(() => grid(seen, step, zone), [seen, step, zone]);
  const newest = useRef(g);
  newest.current = g;
  const x = g.data[0] as number[], [, p90, p10, before, p50, actual] = g.data as (number | null)[][];
  const missing = g.gaps.reduce((a, [from, to]) => a + to - from, 0);
  const peak = seen.forecast?.peak;
  const height = Math.max(260, Math.min(380, Math.round(innerHeight * 0.42)));
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    tzDate: (t) => uPlot.tzDate(new Date(1000 * t), zone),
    scales: { y: { range: (_u, lo, hi) => [Math.min(0, lo), hi > lo ? hi * 1.06 : hi + 1] } },
    axes: [
      axis({
        // Reserve two lines only if a label has two.
        size: (_u, texts) => (texts?.some((t) => t.includes("\n")) ? 40 : 24),
        space: 70,
        values: (_u, v) => v.map((t, i) => {
          const hour = local(1000 * t, zone).slice(-5), date = localDay(1000 * t, zone);
          const fresh = i === 0 || localDay(1000 * v[i - 1]!, zone) !== date;
          return hour === "00:00" ? date : fresh ? `${hour}\n${date}` : hour;
        }),
      }),
      axis({ size: 66, values: (_u, v) => { const large = Math.max(...v.map(Math.abs)) >= 1000; return v.map((y) => (large ? `${+(y / 1000).toPrecision(4)} MW` : `${+y.toPrecision(4)} kW`)); } }),
    ],
    series: [
      {},
      { label: "P90", stroke: "transparent", points: { show: false } },
      { label: "P10", stroke: "transparent", points: { show: false } },
      { label: "week before", stroke: colour("muted"), width: 1.25, dash: [2, 4], points: { show: false } },
      { label: "P50", stroke: colour("accent"), width: 1.75, points: { show: false } },
      { label: "load", stroke: colour("text"), width: 1.5, points: { show: false } },
    ],
    bands: [{ series: [1, 2], fill: colour("band") }],
    hooks: {
      draw: [(u) => {
        const { ctx, bbox } = u, now = newest.current, edge = (now.data[0] as number[])[0]!;
        ctx.save();
        ctx.fillStyle = colour("bad");
        for (const [from, to] of now.gaps) {
          const left = u.valToPos(edge + from * now.step, "x", true), right = u.valToPos(edge + to * now.step, "x", true);
          ctx.fillRect(left, bbox.top + bbox.height - 6 * devicePixelRatio, Math.max(right - left, 2), 6 * devicePixelRatio);
        }
        const at = Math.round(u.valToPos(edge + now.known * now.step, "x", true)) + 0.5;
        ctx.strokeStyle = colour("edge");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([]);
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
        ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
        ctx.fillStyle = colour("muted");
        ctx.textAlign = "right";
        ctx.textBaseline = "top";
        ctx.fillText("now", at - 5 * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
        ctx.restore();
      }],
    },
  });
  const range = (i: number) => `${load(p10![i])} to ${load(p90![i])}`;
  return (
    <Section title="Load and forecast">
      <Chart
        label="Load and forecast"
        height={height}
        version={`${days} ${seen.from} ${x.length}`}
        sentence={
          <>
            {g.mean == null ? "There are no readings in this range. " : <>Mean load <b>{load(g.mean)} kW</b>{missing > 0 ? `, ${count(missing)} of ${count(g.known)} readings missing` : ", no reading missing"}. </>}
            {peak?.time ? <>The forecast reaches to {localHour(1000 * x.at(-1)!, zone)}; the highest step of the next 24 hours is <b>{load(peak.P50)} kW</b> ({load(peak.P10)} to {load(peak.P90)}), most likely at {localHour(Date.parse(peak.time), zone)}.</> : "There is no forecast yet."}
          </>
        }
        keys={<>
          <Key kind="load">load</Key><Key kind="p50">forecast P50, the median; before now: made {lead.replace("h", " h")} ahead or more</Key><Key kind="band">P10 to P90</Key>
          {g.week > 0 && <Key kind="week">same time last week</Key>}{missing > 0 && <Key kind="gap">reading missing</Key>}
        </>}
        data={g.data}
        options={options}
        read={(i) => (
          <span title={utc(1000 * x[i]!)}>
            <b>{localHour(1000 * x[i]!, zone)}</b> ({utc(1000 * x[i]!).slice(11, 16)} UTC): load <b>{load(actual![i])}</b>, P50 <b>{load(p50![i])}</b> ({range(i)}), last week {load(before![i])} kW{g.source[i] ? `, from ${g.source[i]}` : ""}
          </span>
        )}
        head={["time", "load kW", "P10", "P50", "P90", "last week", "from"]}
        rows={() => x.map((t, i) => [localHour(1000 * t, zone), load(actual![i]), load(p10![i]), load(p50![i]), load(p90![i]), load(before![i]), g.source[i] ?? none]).reverse().slice(0, 1000)}
      />
    </Section>
  );
}

function Scores({ scores, days, mean }: { scores: Score[]; days: number; mean: number | null }) {
  const all = scores.find((s) => s.days === days && s.leads == null);
  const by = scores.filter((s) => s.days === days && s.leads != null && s.steps > 0);
  const skill = better(all?.relative_mae);
  const energy = better(all?.energy?.relative_mae);
  return (
    <>
      <Figures label={`Errors of ${days} days`} items={[
        { label: "mean absolute error", value: load(all?.mae_kw), unit: all?.mae_kw == null ? undefined : "kW", note: `all leads, ${days === 1 ? "1 day" : `${days} days`}` },
        { label: "of the mean load", value: percent(all?.mae_kw != null && mean ? all.mae_kw / mean : null, 1), note: "error divided by the mean load of the range" },
        { label: "against last week", value: skill.figure, note: all?.relative_mae != null ? `${skill.word} last week's load (relative MAE ${fixed(all.relative_mae, 2)})` : "not scored yet", tone: skill.word === "worse than" ? "warn" : undefined },
        { label: "energy of a day", value: energy.figure, note: all?.energy ? `${energy.word} last week's (relative MAE ${fixed(all.energy.relative_mae, 2)}), bias ${all.energy.bias > 0 ? "+" : ""}${percent(all.energy.bias, 1)}, ${all.energy.days === 1 ? "1 day" : `${all.energy.days} days`}` : "not scored yet", tone: energy.word === "worse than" ? "warn" : undefined },
        { label: "in the band P10 to P90", value: percent(all?.coverage_P10_P90), note: "should be 80 %" },
        { label: "not from a model", value: percent(all?.fallback_share), note: all?.steps ? `of ${count(all.steps)} scored steps` : "not scored yet" },
      ]} />
      {by.length > 0 && (
        <Section title="Error by lead">
          <Table label="Error by lead" rows={by} id={(s) => s.leads!.first} columns={[
            { head: "lead", of: (s) => `${seconds(s.leads!.first) / 3600} to ${seconds(s.leads!.last) / 3600} h` },
            { head: "MAE kW", of: (s) => load(s.mae_kw), number: true },
            { head: "relative MAE", of: (s) => fixed(s.relative_mae, 2), number: true, title: "against last week's load" },
            { head: "coverage", of: (s) => percent(s.coverage_P10_P90), number: true },
            { head: "steps", of: (s) => count(s.steps), number: true },
          ]} />
        </Section>
      )}
    </>
  );
}

// Tomorrow shows the agent's own forecasts of daily energies and of the peak, because sums that the page computes would
// differ.
function Tomorrow({ f, zone }: { f?: Forecast; zone: string }) {
  const range = (low: number | null, high: number | null) => (low == null || high == null ? none : `${load(low)} to ${load(high)}`);
  const peak = f?.peak;
  return (
    <Section title="The next days" note="Energy is the mean forecast; a day that has begun counts what was measured. P10 to P90 comes from the errors of earlier days.">
      {!f || f.energy.every((d) => d.mean == null) ? <Empty title="No forecast yet."><p class="note">The agent forecasts after a week of readings at the latest.</p></Empty> : (
        <>
          <Table label="The next days" rows={f.energy} id={(d) => d.day} columns={[
            { head: "day", of: (d) => d.day },
            { head: "energy", of: (d) => `${load(d.mean)} kWh`, number: true },
            { head: "P10 to P90", of: (d) => range(d.P10, d.P90), number: true },
          ]} />
          {peak?.time && <p>Highest step of the next 24 hours: <b>{load(peak.P50)} kW</b> ({range(peak.P10, peak.P90)}), most likely at <span title={utc(Date.parse(peak.time))}>{local(Date.parse(peak.time), zone).slice(-5)}</span>.</p>}
        </>
      )}
    </Section>
  );
}

const Problems = ({ q, zone }: { q?: Quality; zone: string }) => (
  <Section title="Problems of the readings" note={q?.from && q.to ? <>Checked from <Time ms={Date.parse(q.from)} zone={zone} /> to <Time ms={Date.parse(q.to)} zone={zone} />, {percent(n(q.missing_share), 1)} missing.</> : undefined}>
    {q?.findings.length ? (
      <ul class="findings">{q.findings.map((x, i) => <li key={i}><State of="quiet"><b>{x.code}</b></State><p>{x.message}</p><p class="note">{x.advice}</p></li>)}</ul>
    ) : <p class="note">{q ? "None found." : "Not checked yet."}</p>}
  </Section>
);
