import { useState } from "preact/hooks";
import { call, type Event } from "../api";
import { cell, n } from "../format";
import { go, link } from "../router";
import { Empty, Failure, Pages, Search, Table, Time, useAsk, useTitle, Waiting } from "../ui";

const page = 100;
const most = 20_000; // events in an export

// exported returns all matching events as CSV, newest first.
async function exported(actor: string, action: string, progress: (k: number) => void): Promise<{ csv: string; whole: boolean }> {
  const rows: Event[] = [];
  for (let before = ""; rows.length < most; ) {
    const { events = [] } = await call("ListAudit", { limit: 1000, before, actor, action });
    rows.push(...events);
    progress(rows.length);
    before = events[events.length - 1]?.id ?? "";
    if (events.length === 0 || !before) break;
  }
  const lines = rows.map((e) => [new Date(n(e.at)).toISOString(), e.actor, e.action, e.subject, e.detail].map((x) => cell(x ?? "")).join(","));
  return { csv: ["at,actor,action,subject,detail", ...lines].join("\r\n") + "\r\n", whole: rows.length < most };
}

export function Audit({ query }: { query: URLSearchParams }) {
  useTitle("Audit");
  const actor = query.get("actor") ?? "", action = query.get("action") ?? "";
  const [before, turn] = useState("");
  const [said, say] = useState("");
  const asked = useAsk(() => call("ListAudit", { limit: page, before, actor, action }), [actor, action, before]);
  const rows = asked.value?.events ?? [];
  const filter = (q: Record<string, string>) => {
    turn("");
    go(link(["audit"], { actor, action, ...q }), true);
  };
  const save = async () => {
    try {
      const { csv, whole } = await exported(actor, action, (k) => say(`${k} events…`));
      const url = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
      const a = document.createElement("a");
      a.href = url;
      a.download = "loadstar-audit.csv";
      a.click();
      setTimeout(() => URL.revokeObjectURL(url), 10e3);
      say(whole ? "Saved loadstar-audit.csv." : `Saved the newest ${most} events. Filter, or use loadstar audit list, for older ones.`);
    } catch (e) {
      say((e as Error).message);
    }
  };
  return (
    <>
      <h1>Audit</h1>
      <p class="lead">Who did what, newest first. Nothing can be removed here.</p>
      <div class="filters" key={actor + "/" + action}>
        <Search label="Actor" value={actor} set={(s) => filter({ actor: s })} hint="user anna via web" />
        <Search label="Action" value={action} set={(s) => filter({ action: s })} hint="create token" />
        <button type="button" onClick={save}>Export as CSV</button>
        <span role="status" class="note">{said}</span>
      </div>
      <Failure error={asked.error} again={asked.again} />
      {!asked.value && !asked.error && <Waiting />}
      {asked.value && (
        <div class="card">
          <Table label="Events" rows={rows} id={(e) => e.id || `${e.at} ${e.action} ${e.subject}`} empty={
            <Empty title={actor || action ? "No event fits." : "No event yet."}>{(actor || action) && <p><a href="#/audit">Show all events</a></p>}</Empty>
          } columns={[
            { head: "at", of: (e) => <Time ms={n(e.at)} /> },
            { head: "actor", of: (e) => <a href={link(["audit"], { action, actor: e.actor ?? "" })}>{e.actor}</a> },
            { head: "action", of: (e) => <a href={link(["audit"], { actor, action: e.action ?? "" })}>{e.action}</a> },
            { head: "subject", of: (e) => e.subject },
            { head: "detail", of: (e) => <span class="wrap">{e.detail}</span> },
          ]} />
          <Pages first={before ? () => turn("") : undefined} next={rows.length === page ? () => turn(rows[rows.length - 1]!.id ?? "") : undefined} busy={asked.busy} />
        </div>
      )}
    </>
  );
}
