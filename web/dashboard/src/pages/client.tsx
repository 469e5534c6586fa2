import { call } from "../api";
import { useViewer } from "../context";
import { better, count, day, fixed, n, no, none, percent, span } from "../format";
import { link } from "../router";
import { agentState } from "./fleet";
import { Ago, Confirm, Dots, Empty, Failure, Figures, Generated, Section, State, Table, Time, useAsk, useTitle, Waiting } from "../ui";

// Client shows what the server knows of a client: scores, sources and codes. It has no readings to show.
export function Client({ name }: { name: string }) {
  useTitle(name);
  const { operate } = useViewer();
  const asked = useAsk(() => call("GetClient", { client: name }), [name]);
  const c = asked.value?.client, agent = asked.value?.agent, turns = asked.value?.turns ?? [];
  if (!c) return <><h1>{name}</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const r = c.report, skill = better(r?.relativeMae);
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
      <Generated when={agent?.generated} />
      <Figures label="Forecasts of 28 days" items={[
        { label: "forecast", value: skill.figure, note: r?.relativeMae != null ? `${skill.word} last week's profile (relative MAE ${fixed(r.relativeMae, 2)})` : "not reported" },
        { label: "coverage of P10 to P90", value: percent(r?.coverage), note: "should be 80 %" },
        { label: "release", value: r?.release || none, note: r ? `reported for ${day(n(r.day))}` : "no report yet" },
        { label: "newest reading", value: r ? span(1000 * n(r.readingsAgeSeconds)) : none, note: "old when it reported; the reading itself stays at the client" },
      ]} />
      <div class="two">
        <Section title="Forecasts come from">
          {r?.shares?.length ? (
            <ul class="bars">
              {r.shares.map((s) => (
                <li key={s.source}><State of={s.source ?? ""} /><span class="bar"><i style={{ width: `${100 * n(s.share)}%` }} /></span><span class="number">{percent(s.share, n(s.share) < 0.1 ? 1 : 0)}</span></li>
              ))}
            </ul>
          ) : <Empty title="No report yet."><p class="note">A client reports once a day after its agent uses a release: <code>loadstar models release RUN</code></p></Empty>}
          {(r?.drift || r?.wantsRound) && <p>{r.drift && <State of="drift">drift: recent errors grew</State>} {r.wantsRound && <State of="wants a round">training again might help</State>}</p>}
        </Section>
        <Section title="Problems with its readings">
          {r?.findings?.length ? (
            <ul class="prose">{r.findings.map((f) => <li key={f}><a href={link(["data"], { code: f })}>{f}</a></li>)}</ul>
          ) : <p class="note">{r ? "None reported." : "No report yet."}</p>}
          <p class="note">Inputs beside load and calendar: {c.inputs?.join(", ") || "none"}</p>
        </Section>
      </div>
      <Section title="Newest turns" note="A turn is this client's part in a round.">
        <Table label="Newest turns" rows={turns} id={(t) => `${t.run}/${t.round}`} empty={<p class="note">It has not been asked to train in the newest rounds.</p>} columns={[
          { head: "round", of: (t) => count(no(t)), number: true },
          { head: "run", of: (t) => <a href={link(["runs", t.run!])}><code>{t.run}</code></a> },
          { head: "state", of: (t) => <State of={t.state ?? ""} /> },
          { head: "from version", of: (t) => count(n(t.version)), number: true },
          { head: "examples", of: (t) => (t.state === "counted" ? count(n(t.examples)) : none), number: true },
          { head: "steps", of: (t) => (t.state === "counted" ? count(n(t.steps)) : none), number: true },
          { head: "training loss", of: (t) => (t.state === "counted" ? fixed(t.loss ?? 0, 4) : none), number: true },
          { head: "norm", of: (t) => (n(t.norm) > 0 ? `${fixed(t.norm, 4)}${t.clipped ? " (clipped)" : ""}` : none), number: true, title: "size of its update, after the server's limit" },
          { head: "counted", of: (t) => <Time ms={n(t.counted)} /> },
          { head: "reason", of: (t) => t.reason || none },
        ]} />
      </Section>
    </>
  );
}
