import { useEffect, useState } from "preact/hooks";
import type uPlot from "uplot";
import { get, post, type Attack, type Audit } from "../agentapi";
import { axis, Chart, colour, Key } from "../chart";
import { fixed, load, percent } from "../format";
import { link } from "../router";
import { Empty, Failure, Section, Table, useTitle } from "../ui";

const names: Record<string, string> = { profile: "Mean load by hour of the day", readings: "Single readings" };
const title = (a: Attack) => `${names[a.name] ?? a.name}, from ${a.updates === 1 ? "the newest update" : `${a.updates} updates`}`;

// AuditPage shows what a client's updates reveal. The agent computes the audit, and nothing leaves the machine.
export function AuditPage({ name }: { name: string }) {
  useTitle(`Audit of ${name}`);
  const [audit, set] = useState<Audit>();
  const [error, fail] = useState<Error>();
  const path = `audit/${encodeURIComponent(name)}`;
  const ask = (p: Promise<Audit>) => p.then((a) => { set(a); fail(undefined); }, fail);
  useEffect(() => void ask(get<Audit>(path)), [path]);
  const running = audit?.state === "running";
  useEffect(() => {
    if (!running) return;
    const t = setInterval(() => void ask(get<Audit>(path)), 1000);
    return () => clearInterval(t);
  }, [running, path]);
  const report = audit?.report;
  const shown = report?.attacks.filter((a, i, all) => all[i + 1]?.name !== a.name) ?? [];
  return (
    <>
      <p class="crumb"><a href={link([name])}>{name}</a></p>
      <div class="head">
        <h1>What updates reveal</h1>
        <div class="buttons"><button type="button" class="primary" disabled={running || !audit} onClick={() => void ask(post<Audit>(path))}>{report ? "Audit again" : "Audit"}</button></div>
      </div>
      <p class="lead">The agent attacks the newest updates of {name} itself. The attacker has the updates, the plan, the weights, the personal layers and all readings but those it guesses. It lacks this agent's secret. Nothing of this leaves the machine.</p>
      <Failure error={error ?? (audit?.state === "failed" ? new Error(audit.error) : undefined)} />
      {running && <p class="line" role="status">The audit runs: {percent(audit.share_done)}. It takes minutes, and training waits meanwhile.</p>}
      {audit?.state === "none" && <Empty title="No audit yet."><p class="note">It takes minutes. The result is kept until another client is audited or the agent ends.</p></Empty>}
      {report && (
        <Section title="What it finds" note={<>Run {report.run}, newest update of round {report.round}{report.pending ? ", which the server has not counted yet" : ""}. 1 means that the guesses are in line with the truth, 0 that they have nothing to do with it.</>}>
          <Table label="What it finds" rows={report.attacks} id={title} columns={[
            { head: "attack", of: title },
            { head: "found", of: (a) => a.meaning },
            { head: "correlation", of: (a) => <b>{fixed(a.guess.correlation, 2)}</b>, number: true },
            { head: "without the updates", of: (a) => fixed(a.guess_without_updates.correlation, 2), number: true, title: "what the attacker would guess from all other readings alone" },
            { head: "with the secret", of: (a) => fixed(a.guess_with_known_draws.correlation, 2), number: true, title: "if it knew which examples the agent draws" },
          ]} />
        </Section>
      )}
      {shown.map((a) => <Curve key={a.name} attack={a} />)}
      {report && <p class="note">This is no proof: a server that chooses plan and weights can learn more. The page docs/privacy.md of the documentation says what remains.</p>}
    </>
  );
}

function Curve({ attack: a }: { attack: Attack }) {
  const x = a.labels.map((_, i) => i);
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: { x: { time: false } },
    axes: [
      axis({ space: a.name === "profile" ? 60 : 140, values: (_u, v) => v.map((i) => (Number.isInteger(i) ? (a.labels[i] ?? "") : "")) }),
      axis({ size: 62, values: (_u, v) => v.map((y) => `${+y.toPrecision(4)} kW`) }),
    ],
    series: [
      {},
      { label: "truth", stroke: colour("text"), width: 1.75, points: { show: false } },
      { label: "guess", stroke: colour("accent"), width: 1.75, points: { show: false } },
      { label: "guess with the secret", stroke: colour("muted"), width: 1.25, dash: [2, 4], points: { show: false } },
    ],
  });
  return (
    <Section title={title(a)}>
      <Chart
        label={title(a)}
        sentence={<>An attacker finds this <b>{a.meaning}</b>: correlation <b>{fixed(a.guess.correlation, 2)}</b>, and {fixed(a.guess_with_known_draws.correlation, 2)} if it knew the secret.</>}
        keys={<><Key kind="load">truth</Key><Key kind="p50">what the attacker finds</Key><Key kind="week">what it would find with the secret</Key></>}
        data={[x, a.truth_kw, a.guess.kw, a.guess_with_known_draws.kw]}
        options={options}
        version={a.labels.join()}
        read={(i) => <><b>{a.labels[i]}</b>: truth <b>{load(a.truth_kw[i])}</b>, found <b>{load(a.guess.kw[i])}</b>, with the secret {load(a.guess_with_known_draws.kw[i])} kW</>}
        head={[a.name === "profile" ? "hour" : "time", "truth kW", "found", "with the secret"]}
        rows={() => x.map((i) => [a.labels[i]!, load(a.truth_kw[i]), load(a.guess.kw[i]), load(a.guess_with_known_draws.kw[i])])}
      />
    </Section>
  );
}
