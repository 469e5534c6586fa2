import { useState } from "preact/hooks";
import { call, type Agent, type Client, type Fleet as FleetState, type ReportDay, type Run } from "../api";
import { useViewer } from "../context";
import { better, count, day, n, none, percent, several, span } from "../format";
import { useTopic } from "../live";
import { go, link } from "../router";
import { Ago, Confirm, Copy, Empty, Failure, Figures, Generated, Pages, Search, Section, State, Table, Time, useAsk, useNow, useTitle, Waiting, type Column, type Figure } from "../ui";
import { Progress } from "./runs";

const page = 10; // agents
const clientPage = 25;

export function Fleet({ query }: { query: URLSearchParams }) {
  useTitle("Fleet");
  const { operate } = useViewer();
  const poll = () => call("GetFleet", {});
  const live = useTopic("fleet", poll);
  const asked = useAsk(poll, []);
  const fleet = live ?? asked.value;
  if (!fleet) return <><h1>Fleet</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const agents = n(fleet.agents), clients = n(fleet.clients);
  return (
    <>
      <div class="head">
        <h1>Fleet</h1>
        <p class="sub">{fleet.hub ? `region of ${fleet.hub} · ` : ""}server {fleet.version || none}</p>
        {operate && <a class="button small" href="#/tokens">Join tokens</a>}
      </div>
      <Generated when={fleet.generated} />
      {agents === 0 && n(fleet.revoked) === 0 ? <Join /> : (
        <>
          <Figures label="The fleet now" items={figures(fleet, agents, clients)} />
          {fleet.run ? <Now run={fleet.run} /> : <NoRun clients={clients} />}
          <Agents query={query} changed={`${n(fleet.silent)} ${n(fleet.quiet)}`} />
          <Clients query={query} />
        </>
      )}
    </>
  );
}

function figures(f: FleetState, agents: number, clients: number): Figure[] {
  const quiet = n(f.quiet), silent = n(f.silent), expiring = n(f.expiring), s: ReportDay | undefined = f.serving;
  const skill = better(s?.relativeMae);
  return [
    { label: "clients", value: count(clients), note: <a href="#/leaves">no raw readings; updates reveal something</a> },
    {
      label: "agents", value: count(agents), tone: quiet + silent > 0 ? "warn" : undefined,
      note: [silent ? `${count(silent)} silent while training` : "", quiet ? `${count(quiet)} quiet` : silent ? "" : "all check in", n(f.revoked) ? `${count(n(f.revoked))} revoked` : "", expiring ? `${several(expiring, "certificate")} end within 2 days` : ""].filter(Boolean).join(", "),
    },
    { label: "median forecast", value: skill.figure, note: s ? `${skill.word} last week's profile, week to ${day(n(s.day))}` : "no client has reported yet" },
    { label: "coverage of P10 to P90", value: percent(s?.coverage), note: s ? "should be 80 %" : "no client has reported yet" },
    {
      label: "reported", value: s ? count(n(s.clients)) : none,
      note: s ? [`fallback ${percent(s.fallback)}`, n(s.drifting) ? `${count(n(s.drifting))} drifting` : "", n(s.wanting) ? `${count(n(s.wanting))} want a round` : ""].filter(Boolean).join(", ") : "clients report once a week",
    },
  ];
}

function Join() {
  const { operate } = useViewer();
  return (
    <div class="card">
      <Empty title="No agent has joined yet.">
        <p>{operate ? <><a href="#/tokens">Create a token here</a>, or with the command line</> : "Make a token with an operator's certificate"}, and use it where the readings are:</p>
        <Copy text="loadstar token create --uses 1" label="command that makes a token" />
        <Copy text="loadstar agent join https://SERVER:7443 --token-file FILE" label="command that joins" />
      </Empty>
    </div>
  );
}

const Now = ({ run }: { run: Run }) => (
  <section class="card now" aria-labelledby="now">
    <h2 id="now">Now</h2>
    <State of={run.state ?? ""} />
    <a href={link(["runs", run.id!])}><b>{run.name}</b> <code>{run.id}</code></a>
    <Progress run={run} />
    <span class="note">{several(n(run.clients), "client")}{run.reason ? ` · ${run.reason}` : ""}</span>
    <a class="button small" href={link(["runs", run.id!])}>Open<span class="hidden"> the run {run.name}</span></a>
  </section>
);

function NoRun({ clients }: { clients: number }) {
  const { operate } = useViewer();
  return (
    <section class="card now" aria-labelledby="now">
      <h2 id="now">Now</h2>
      <span class="note">No run is under way.{clients > 0 ? "" : " Clients appear when agents announce them."}</span>
      {clients > 0 && (operate ? <a class="button small" href="#/start">Start a run</a> : <code>loadstar run start plans/day-ahead.yaml</code>)}
    </section>
  );
}

// useTick changes every half minute, so that lists without events are fetched again.
const useTick = () => Math.floor(useNow(5000) / 30e3);

const skew = (a: Agent) => (a.skewMs == null ? none : Math.abs(n(a.skewMs)) < 50 ? "in step" : `${n(a.skewMs) > 0 ? "+" : "−"}${span(Math.abs(n(a.skewMs)))}`);

// agentState describes an agent in one word. Two machines with the same identity are more important than silence.
export const agentState = (a: Agent): string => (a.revoked ? "revoked" : n(a.copied) ? "copied" : a.silent ? "silent while training" : a.quiet ? "quiet" : "here");

// Agents lists the agents. It fetches the list again when the number of silent or quiet agents changes.
function Agents({ query, changed }: { query: URLSearchParams; changed: string }) {
  const { operate } = useViewer();
  const [name, find] = useState("");
  const [after, turn] = useState("");
  const asked = useAsk(() => call("ListAgents", { name, after, limit: page }), [name, after, useTick(), changed]);
  const rows = asked.value?.agents ?? [];
  const columns: Column<Agent>[] = [
    { head: "agent", of: (a) => <a href={link([], { ...Object.fromEntries(query), agent: a.id! })} title={`Clients of ${a.id}`}><b>{a.name || a.id}</b></a> },
    { head: "state", of: (a) => <State of={agentState(a)} /> },
    { head: "clients", of: (a) => n(a.refused) ? <span title={`Refused, because they are revoked or another agent has them: ${a.refusedNames?.join(", ")}`}>{count(n(a.clients))}, {count(n(a.refused))} refused: {a.refusedNames?.join(", ")}</span> : count(n(a.clients)), number: true },
    { head: "with findings", of: (a) => count(n(a.findings)), number: true, title: "clients that reported problems with their readings; the agent's own page shows which" },
    { head: "seen", of: (a) => <Ago ms={n(a.seen)} /> },
    { head: "version", of: (a) => a.version || none },
    { head: "protocol", of: (a) => (n(a.protocol) ? count(n(a.protocol)) : none), number: true, title: "version of the protocol that it speaks" },
    { head: "token", of: (a) => (a.token ? <code>{a.token}</code> : none), title: "the join token with which it joined last" },
    { head: "clock", of: skew, number: true, title: "how far its clock is ahead of the server's" },
    { head: "certificate until", of: (a) => <Time ms={n(a.expires)} /> },
    { head: "joined", of: (a) => <Time ms={n(a.joined)} /> },
  ];
  if (operate) {
    columns.push({
      head: "action",
      of: (a) => a.revoked ? "" : (
        <Confirm small label="Revoke" yes="Revoke the agent" title={`Revoke ${a.name || a.id}?`} act={async () => { await call("Revoke", { agent: a.id! }); asked.again(); }}>
          <p>The server permanently refuses this agent and its {several(n(a.clients), "client")}. To come back it must join again with a new token.</p>
        </Confirm>
      ),
    });
  }
  return (
    <Section title="Agents" action={<Search label="Find an agent" value={name} set={(s) => { turn(""); find(s); }} hint="name begins with" />}>
      <Failure error={asked.error} again={asked.again} />
      {asked.value && <Table label="Agents" rows={rows} id={(a) => a.id!} columns={columns} empty={<p class="note">{name ? `No agent's name begins with ${name}.` : "None."}</p>} />}
      <Pages first={after ? () => turn("") : undefined} next={rows.length === page ? () => turn(rows[rows.length - 1]!.id!) : undefined} busy={asked.busy} />
    </Section>
  );
}

function Clients({ query }: { query: URLSearchParams }) {
  const agent = query.get("agent") ?? "";
  const name = query.get("client") ?? "";
  const [after, turn] = useState("");
  const asked = useAsk(() => call("ListClients", { name, agent, after, limit: clientPage }), [name, agent, after, useTick()]);
  const rows = asked.value?.clients ?? [];
  const columns: Column<Client>[] = [
    { head: "client", of: (c) => <a href={link(["clients", c.name!])}><b>{c.name}</b></a> },
    { head: "agent", of: (c) => c.agentName || c.agent || none },
    { head: "state", of: (c) => <>{c.revoked ? <State of="revoked" /> : <Ago ms={n(c.seen)} />}{c.also?.length ? <span class="note"> also announced by {c.also.join(", ")}</span> : null}</> },
    { head: "release", of: (c) => c.release || none },
    { head: "step", of: (c) => (n(c.stepSeconds) ? span(1000 * n(c.stepSeconds)) : none), number: true },
  ];
  return (
    <Section
      title="Clients"
      note={agent ? <>Clients of one agent. <a href={link([], { client: name })}>Show all</a></> : undefined}
      action={<Search label="Find a client" value={name} set={(s) => { turn(""); go(link([], { agent, client: s }), true); }} hint="name begins with" />}
    >
      <Failure error={asked.error} again={asked.again} />
      {asked.value && (
        <Table label="Clients" rows={rows} id={(c) => c.name!} columns={columns}
          empty={<p class="note">{name || agent ? "No client fits." : "No client is announced yet. An agent announces its clients when it starts: loadstar agent run DATA"}</p>} />
      )}
      <Pages first={after ? () => turn("") : undefined} next={asked.value?.next ? () => turn(asked.value!.next!) : undefined} busy={asked.busy} />
    </Section>
  );
}
