import { call } from "../api";
import { useViewer } from "../context";
import { count, day, fixed, n, no, none, span } from "../format";
import { link } from "../router";
import { agentState } from "./fleet";
import { Ago, Confirm, Dots, Failure, Figures, Generated, Section, State, Table, Time, useAsk, useTitle, Waiting } from "../ui";

// Client shows what the server knows about a client. The server has no readings.
export function Client({ name }: { name: string }) {
  useTitle(name);
  const { operate } = useViewer();
  const asked = useAsk(() => call("GetClient", { client: name }), [name]);
  const c = asked.value?.client, agent = asked.value?.agent, turns = asked.value?.turns ?? [];
  if (!c) return <><h1>{name}</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  return (
    <>
      <p class="crumb"><a href="#/">Fleet</a></p>
      <div class="head">
        <div>
          <h1>{c.name}</h1>
          <p class="sub">
            <Dots parts={[
              c.revoked ? <State of="revoked" /> : agent && <State of={agentState(agent)} />,
              <>agent <a href={link([], { agent: c.agent ?? "" })}>{c.agentName || c.agent}</a></>,
              agent?.token && <>joined with token <code>{agent.token}</code></>,
              n(agent?.protocol) > 0 && `protocol ${count(n(agent!.protocol))}`,
              <>seen <Ago ms={n(c.seen)} /></>,
              <>announced <Time ms={n(c.announced)} /></>,
              n(c.stepSeconds) > 0 && `steps of ${span(1000 * n(c.stepSeconds))}`,
            ]} />
          </p>
        </div>
        {operate && !c.revoked && (
          <Confirm label="Revoke" yes="Revoke the client" title={`Revoke ${c.name}?`} act={async () => { await call("Revoke", { client: c.name! }); asked.again(); }}>
            <p>The server permanently refuses this client. Its agent and the agent's other clients stay.</p>
          </Confirm>
        )}
      </div>
      {agent && n(agent.copied) > 0 && <p class="notice">Two machines have the identity of this client's agent. The runbook of the alert IdentityCopied says what to do (docs/how-to/alerts.md).</p>}
      {c.also?.length ? <p class="notice">{c.also.join(", ")} announced a client of this name too and was refused: no readings of it are trained on. Rename one of the two, or revoke this client and free it.</p> : null}
      <Generated when={agent?.generated} />
      <Figures label="What it reported" items={[
        { label: "release", value: c.release || none, note: n(c.reported) ? `reported for the week to ${day(n(c.reported))}` : "no report yet" },
        { label: "inputs", value: count(c.inputs?.length ?? 0), note: c.inputs?.join(", ") || "only load and calendar" },
      ]} />
      <p class="note">How good its forecasts are and what is wrong with its readings stays with the agent: its own page shows both. This server shows sums over the <a href={link([], { agent: c.agent ?? "" })}>agent</a> and over the <a href="#/data">fleet</a>.</p>
      <Section title="Newest turns" note="A turn is this client's part in a round.">
        <Table label="Newest turns" rows={turns} id={(t) => `${t.run}/${t.round}`} empty={<p class="note">It has not been asked to train in the newest rounds.</p>} columns={[
          { head: "round", of: (t) => count(no(t)), number: true },
          { head: "run", of: (t) => <a href={link(["runs", t.run!])}><code>{t.run}</code></a> },
          { head: "state", of: (t) => <State of={t.state ?? ""} /> },
          { head: "from version", of: (t) => count(n(t.version)), number: true },
          { head: "examples", of: (t) => (t.state === "counted" ? count(n(t.examples)) : none), number: true },
          { head: "steps", of: (t) => (t.state === "counted" ? count(n(t.steps)) : none), number: true },
          { head: "norm", of: (t) => (n(t.norm) > 0 ? `${fixed(t.norm, 4)}${t.clipped ? " (clipped)" : ""}` : none), number: true, title: "size of its update, after the server's limit" },
          { head: "counted", of: (t) => <Time ms={n(t.counted)} /> },
          { head: "reason", of: (t) => t.reason || none },
        ]} />
      </Section>
    </>
  );
}
