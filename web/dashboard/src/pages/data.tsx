import { useState } from "preact/hooks";
import { call, type Finding } from "../api";
import { count, day, n, percent, sentence } from "../format";
import { link } from "../router";
import { Ago, Empty, Failure, Pages, Section, Table, useAsk, useTitle, Waiting } from "../ui";

const days = 14;

export function Data({ query }: { query: URLSearchParams }) {
  useTitle("Data health");
  const asked = useAsk(() => call("ListFindings", { days }), []);
  const v = asked.value;
  const code = query.get("code") ?? "";
  if (!v) return <><h1>Data health</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const all = v.findings ?? [], newest = n(v.day), reported = n(v.reported);
  const now = all.filter((f) => n(f.day) === newest);
  return (
    <>
      <div class="head"><h1>Data health</h1><p class="sub">{newest ? `${count(reported)} clients reported on ${day(newest)}` : ""}</p></div>
      <p class="lead">Agents check their readings where they are, and report codes only. No value leaves a client.</p>
      {code && <Affected code={code} all={all} />}
      <div class="card">
        {newest === 0 ? (
          <Empty title="No client has reported yet.">
            <p>Clients report once a day. To check a dataset now, run this where the readings are:</p>
            <p><code>loadstar data check DATA</code></p>
          </Empty>
        ) : (
          <Table label="Problems with readings" rows={now} id={(f) => f.code!} empty={<Empty title={`No problem was reported on ${day(newest)}.`} />} columns={[
            { head: "problem", of: (f) => <a href={link(["data"], { code: f.code! })}><b class="wrap">{sentence(f.title) || f.code}</b></a> },
            { head: "code", of: (f) => <code>{f.code}</code> },
            { head: "clients", of: (f) => count(n(f.clients)), number: true },
            { head: "share", of: (f) => percent(reported ? n(f.clients) / reported : null, 1), number: true },
            { head: `last ${days} days`, of: (f) => <Spark code={f.code!} all={all} newest={newest} /> },
            { head: "what to do", of: (f) => <span class="wrap">{sentence(f.advice)}</span> },
          ]} />
        )}
      </div>
    </>
  );
}

// Spark draws the clients with a problem by day. Its title says the numbers.
function Spark({ code, all, newest }: { code: string; all: Finding[]; newest: number }) {
  const by = new Map(all.filter((f) => f.code === code).map((f) => [n(f.day), n(f.clients)]));
  const values = Array.from({ length: days }, (_, i) => by.get(newest - days + 1 + i) ?? 0);
  const top = Math.max(...values, 1);
  const text = `Clients by day, oldest first: ${values.join(", ")}`;
  return (
    <svg class="spark" viewBox={`0 0 ${days * 6} 24`} width={days * 6} height="24" role="img" aria-label={text}>
      <title>{text}</title>
      {values.map((x, i) => <rect key={i} x={6 * i} width="4.5" y={23 - (21 * x) / top} height={1 + (21 * x) / top} />)}
    </svg>
  );
}

function Affected({ code, all }: { code: string; all: Finding[] }) {
  const [after, turn] = useState("");
  const asked = useAsk(() => call("ListClients", { finding: code, after, limit: 50 }), [code, after]);
  const f = all.find((x) => x.code === code);
  return (
    <Section title={sentence(f?.title) || code} note={sentence(f?.advice)} action={<a class="button small" href="#/data">Close</a>}>
      <Failure error={asked.error} again={asked.again} />
      {asked.value && (
        <Table label={`Clients with ${code}`} rows={asked.value.clients ?? []} id={(c) => c.name!} empty={<p class="note">No client's newest report has this code.</p>} columns={[
          { head: "client", of: (c) => <a href={link(["clients", c.name!])}><b>{c.name}</b></a> },
          { head: "agent", of: (c) => c.agentName || c.agent || "-" },
          { head: "seen", of: (c) => <Ago ms={n(c.seen)} /> },
          { head: "all codes", of: (c) => c.report?.findings?.join(", ") || "-" },
        ]} />
      )}
      <Pages first={after ? () => turn("") : undefined} next={asked.value?.next ? () => turn(asked.value!.next!) : undefined} busy={asked.busy} />
    </Section>
  );
}
