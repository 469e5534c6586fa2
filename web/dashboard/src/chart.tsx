// A chart with a sentence that describes it, a line with the values under the cursor, and a table.
import { type ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Table, type Column } from "./ui";

// colour resolves a custom property for the canvas. The property may contain light-dark().
export function colour(name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const c = getComputedStyle(probe).color;
  probe.remove();
  return c;
}

const font = "12px system-ui, sans-serif";

// axis returns an axis with the style that all axes share.
export const axis = (more: uPlot.Axis): uPlot.Axis => ({
  stroke: colour("muted"), font, labelFont: font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, gap: 6, ...more,
});

export type Row = (string | number)[];

type Props = {
  sentence: ComponentChildren;
  label: string; // of the chart, for screen readers
  data: uPlot.AlignedData;
  options: () => Omit<uPlot.Options, "width" | "height">;
  height?: number;
  read: (i: number) => ComponentChildren; // the values at an index
  keys?: ComponentChildren;
  head: string[];
  rows: () => Row[];
  version?: string; // the chart is rebuilt when this changes
};

export function Chart({ sentence, label, data, options, height = 220, read, keys, head, rows, version = "" }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [at, point] = useState<number | null>(null);
  const [table, show] = useState(false);
  const [look, restyle] = useState(0);
  const id = useId();
  const length = data[0].length;

  useEffect(() => {
    const again = () => restyle((x) => x + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("theme", again);
    dark.addEventListener("change", again);
    return () => {
      removeEventListener("theme", again);
      dark.removeEventListener("change", again);
    };
  }, []);

  useEffect(() => {
    const el = box.current!;
    const o = options();
    const p = new uPlot(
      {
        ...o, width: Math.max(el.clientWidth, 50), height, legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 }, ...o.cursor },
        hooks: { ...o.hooks, setCursor: [(u) => point(u.cursor.idx ?? null)] },
      },
      data, el,
    );
    plot.current = p;
    const watch = new ResizeObserver(() => {
      if (el.clientWidth > 0 && el.clientWidth !== p.width) p.setSize({ width: el.clientWidth, height });
    });
    watch.observe(el);
    return () => {
      watch.disconnect();
      p.destroy();
    };
  }, [look, version, height]);
  useEffect(() => plot.current?.setData(data), [data]);

  // The arrow keys move the cursor like the mouse.
  const key = (e: KeyboardEvent) => {
    const by: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -24, PageDown: 24, Home: -length, End: length };
    const step = by[e.key];
    const p = plot.current;
    if (e.key === "Escape") p?.setCursor({ left: -10, top: -10 });
    if (step === undefined || !p || length === 0) return;
    e.preventDefault();
    const to = Math.min(Math.max((at ?? (step > 0 ? -1 : length)) + step, 0), length - 1);
    p.setCursor({ left: p.valToPos(p.data[0][to]!, "x"), top: p.over.clientHeight / 2 });
  };

  const columns: Column<Row>[] = head.map((h, i) => ({ head: h, of: (r) => r[i]!, number: i > 0 }));
  return (
    <figure class="chart">
      <figcaption id={id}>{sentence}</figcaption>
      {keys && <ul class="keys">{keys}</ul>}
      <div class="plot" ref={box} tabIndex={0} role="group" aria-label={`${label}. Arrow keys read the values.`} aria-describedby={id} onKeyDown={key} />
      <div class="below">
        <p class="readout" aria-live="polite">{at != null && at < length ? read(at) : " "}</p>
        <button type="button" class="small plain" aria-expanded={table} onClick={() => show(!table)}>{table ? "Hide the table" : "Show as table"}</button>
      </div>
      {table && <Table label={`${label}, as a table`} columns={columns} rows={rows()} id={(r) => String(r[0])} />}
    </figure>
  );
}

export const Key = ({ kind, children }: { kind: string; children: ComponentChildren }) => (
  <li><i class={`key ${kind}`} />{children}</li>
);
