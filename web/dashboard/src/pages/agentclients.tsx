import { useState } from "preact/hooks";
import { type AgentClient, type Clients as List } from "../agentapi";
import { count, local, none, several, utc } from "../format";
import { link } from "../router";
import { Copy, Empty, Figures, Generated, Search, Section, State, Table, Time, useTitle } from "../ui";

const most = 500;

// Receiving describes the messages of a meter that has no reading yet.
export const Receiving = ({ of, zone }: { of: AgentClient; zone: string }) => {
  const r = of.receiving;
  if (!r) return <>{none}</>;
  return <>receiving ({several(r.messages, "message")}), first step complete at <span title={utc(Date.parse(r.complete))}>{local(Date.parse(r.complete), zone).slice(-5)}</span></>;
};

export function Clients({ list }: { list: List }) {
  useTitle(list.site);
  const [name, find] = useState("");
  const all = list.clients;
  const fits = all.filter((c) => c.client.toLowerCase().includes(name.toLowerCase()));
  const having = (f: (c: AgentClient) => boolean) => all.filter(f).length;
  const forecast = having((c) => c.cutoff != null && c.source !== "none");
  const sending = having((c) => c.receiving != null);
  return (
    <>
      <h1>Clients of {list.site}</h1>
      <Generated when={list.generated} />
      {all.length > 0 && (
        <Figures label="All clients" items={[
          { label: "clients and groups", value: count(all.length), note: `steps of ${list.step.replace(/^PT/, "").toLowerCase().replace("m", " min").replace("h", " h")}, zone ${list.timezone}` },
          { label: "with a forecast", value: count(forecast), note: forecast < all.length ? `${count(all.length - forecast)} without: too few readings${sending > 0 ? `, ${count(sending)} receiving` : ""}` : "all of them", tone: forecast < all.length ? "warn" : undefined },
          { label: "forecast by a model", value: count(having((c) => c.source === "model" || c.source === "generic")), note: "others use last week, last day or the last load" },
          { label: "with problems", value: count(having((c) => c.findings.length > 0)), note: "in their readings" },
        ]} />
      )}
      <Section title="All clients" action={all.length > 8 && <Search label="Find" value={name} set={find} hint="part of a name" />}>
        <Table label="Clients" rows={fits.slice(0, most)} id={(c) => c.client} empty={
          name ? <p class="note">No name has {name} in it.</p> : (
            <Empty title="No client yet.">
              <p>Clients are listed in agent.yaml, or appear with their first reading:</p>
              <Copy text={`curl --data-binary @readings.csv ${location.origin}/v1/readings`} label="command that sends readings" />
            </Empty>
          )
        } columns={[
          { head: "client", of: (c) => <><a href={link([c.client])}><b>{c.client}</b></a>{c.members && <span class="note"> group of {c.members.length}</span>}</> },
          { head: "newest reading", of: (c) => (c.newest_reading ? <Time ms={Date.parse(c.newest_reading)} zone={list.timezone} /> : <Receiving of={c} zone={list.timezone} />) },
          { head: "history", of: (c) => (c.days == null ? none : `${count(c.days)} days`), number: true },
          { head: "forecast from", of: (c) => (c.source ? <State of={c.source} /> : none) },
          { head: "quality", of: (c) => (c.quality ? <State of={c.quality} /> : none) },
          { head: "release", of: (c) => <>{c.release ?? none}{c.pinned && " (pinned)"}</> },
          { head: "drift", of: (c) => (c.drift ? <State of="drift" /> : "no") },
          { head: "problems", of: (c) => c.findings.join(", ") || "none" },
        ]} />
        {fits.length > most && <p class="note">The first {most} of {count(fits.length)}. Find others by name.</p>}
      </Section>
    </>
  );
}
