import { useState } from "preact/hooks";
import { call, type Finding } from "../api";
import { count, day, n, sentence } from "../format";
import { link } from "../router";
import { Ago, Empty, Failure, Pages, Section, Table, useAsk, useNow, useTitle, Waiting } from "../ui";

const weeks = 12;

export function Data() {
  useTitle("Data health");
  const asked = useAsk(() => call("ListFindings", { days: weeks }), [useNow(20e3)]);
  const v = asked.value;
  if (!v) return <><h1>Data health</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const all = v.findings ?? [], newest = n(v.day), reported = n(v.reported);
  const now = all.filter((f) => n(f.day) === 0);
  return (
    <>
      <div class="head"><h1>Data health</h1><p class="sub">now{newest ? `; ${count(reported)} clients sent their weekly report to ${day(newest)}` : ""}</p></div>
      <p class="lead">Agents check their readings where they are, and report codes only. No value leaves a client. The page of an agent shows which of its clients has which problem.</p>
      <div class="card">
        {newest === 0 && now.length === 0 ? (
          <Empty title="No client has reported a problem.">
            <p>A client reports a problem within a minute, if its agent shares scores. To check a dataset now, run this where the readings are:</p>
            <p><code>loadstar data check DATA</code></p>
          </Empty>
        ) : (
          <Table label="Problems with readings" rows={now} id={(f) => f.code!} empty={<Empty title="No client has a problem now." />} columns={[
            { head: "problem", of: (f) => <b class="wrap">{sentence(f.title) || f.code}</b> },
            { head: "code", of: (f) => <code>{f.code}</code> },
            { head: "clients", of: (f) => count(n(f.clients)), number: true },
            { head: `last ${weeks} weeks`, of: (f) => <Spark code={f.code!} all={all} newest={newest} /> },
            { head: "what to do", of: (f) => <span class="wrap">{sentence(f.advice)}</span> },
          ]} />
        )}
      </div>
      {now.length > 0 && <Affected />}
    </>
  );
}

// Spark draws the number of clients with a problem by week. The title lists the numbers.
function Spark({ code, all, newest }: { code: string; all: Finding[]; newest: number }) {
  const by = new Map(all.filter((f) => f.code === code).map((f) => [n(f.day), n(f.clients)]));
  const values = Array.from({ length: weeks }, (_, i) => by.get(newest - 7 * (weeks - 1 - i)) ?? 0);
  const top = Math.max(...values, 1);
  const text = `Clients by week, oldest first: ${values.join(", ")}`;
  return (
    <svg class="spark" viewBox={`0 0 ${weeks * 6} 24`} width={weeks * 6} height="24" role="img" aria-label={text}>
      <title>{text}</title>
      {values.map((x, i) => <rect key={i} x={6 * i} width="4.5" y={23 - (21 * x) / top} height={1 + (21 * x) / top} />)}
    </svg>
  );
}

function Affected() {
  const [after, turn] = useState("");
  const limit = 50;
  const asked = useAsk(() => call("ListAgents", { findings: true, after, limit }), [after]);
  const rows = asked.value?.agents ?? [];
  return (
    <Section title="Agents whose clients have problems">
      <Failure error={asked.error} again={asked.again} />
      {asked.value && (
        <Table label="Agents whose clients have problems" rows={rows} id={(a) => a.id!} empty={<p class="note">None at this moment.</p>} columns={[
          { head: "agent", of: (a) => <a href={link([], { agent: a.id! })}><b>{a.name || a.id}</b></a> },
          { head: "clients with problems", of: (a) => count(n(a.findings)), number: true },
          { head: "clients", of: (a) => count(n(a.clients)), number: true },
          { head: "seen", of: (a) => <Ago ms={n(a.seen)} /> },
        ]} />
      )}
      <Pages first={after ? () => turn("") : undefined} next={rows.length === limit ? () => turn(rows[rows.length - 1]!.id!) : undefined} busy={asked.busy} />
    </Section>
  );
}
