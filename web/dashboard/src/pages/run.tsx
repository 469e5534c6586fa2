import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { call, type GetRun, type Round, type Run, type Turn, type Waits } from "../api";
import { axis, Chart, colour, Key } from "../chart";
import { useViewer } from "../context";
import { better, bytes, count, fixed, n, no, none, reference, several, span } from "../format";
import { useTopic } from "../live";
import { link } from "../router";
import { Confirm, Dots, Failure, Figures, Generated, Section, State, Table, Time, useAsk, useNow, useTitle, Waiting } from "../ui";
import { current, ended, merged, took } from "./runs";
import { ReleaseVersion, Weights } from "./versions";

const most = 1000; // rounds that the page fetches
const squares = 1000; // maximum number of a round's clients that are drawn individually

// merge adds the newest rounds to the known ones. It returns null if rounds in between are missing.
function merge(known: Map<number, Round>, newest: Round[]): Map<number, Round> | null {
  const incoming = newest.map((r) => n(r.round));
  const top = Math.max(-1, ...known.keys());
  if (incoming.length > 0 && known.size > 0 && Math.min(...incoming) > top + 1) return null;
  const all = new Map(known);
  for (const r of newest) all.set(n(r.round), r);
  return all;
}

// useRun returns a run with its rounds, oldest first.
function useRun(id: string) {
  const asked = useAsk(() => call("GetRun", { run: id, rounds: most }), [id]);
  const live = useTopic<GetRun>(`run:${id}`, () => call("GetRun", { run: id, rounds: 8 }));
  const [state, set] = useState<{ run?: Run; plan?: string; newClients?: GetRun["newClients"]; waiting?: Waits; rounds: Map<number, Round> }>({ rounds: new Map() });
  useEffect(() => {
    const v = asked.value;
    if (!v) return;
    set((s) => ({ ...s, ...v, plan: v.plan ?? s.plan, rounds: new Map([...s.rounds, ...(v.rounds ?? []).map((r): [number, Round] => [n(r.round), r])]) }));
  }, [asked.value]);
  useEffect(() => {
    if (!live || !asked.value) return;
    set((s) => {
      const rounds = merge(s.rounds, live.rounds ?? []);
      if (!rounds) asked.again();
      return { run: live.run ?? s.run, plan: live.plan || s.plan, newClients: live.newClients ?? s.newClients, waiting: live.waiting, rounds: rounds ?? s.rounds };
    });
  }, [live, asked.value]);
  const rounds = useMemo(() => [...state.rounds.values()].sort((a, b) => n(a.round) - n(b.round)), [state.rounds]);
  return { ...state, rounds, error: asked.error, again: asked.again };
}

export function RunPage({ id }: { id: string }) {
  const { operate } = useViewer();
  const { run, plan = "", rounds, newClients, waiting, error, again } = useRun(id);
  useTitle(run?.name ? `${run.name} ${id}` : id);
  const now = useNow();
  if (!run) return <><h1>Run {id}</h1>{error ? <Failure error={error} again={again} /> : <Waiting />}</>;
  const closed = rounds.filter((r) => r.state === "merged" || r.state === "abandoned");
  const whole = rounds.length === 0 || n(rounds[0]!.round) <= 0;
  const scored = rounds.filter((r) => n(r.evaluated) > 0);
  const ref = reference(plan);
  const skill = better(scored.at(-1)?.relativeMae ?? null);
  const over = ended(run);
  const sum = (f: (r: Round) => number) => rounds.reduce((a, r) => a + f(r), 0);
  const since = whole ? "" : `in the newest ${count(rounds.length)} rounds`;
  return (
    <>
      <p class="crumb"><a href="#/runs">Runs</a></p>
      <div class="head">
        <div>
          <h1>{run.name} <code>{run.id}</code></h1>
          <p class="sub">
            <Dots parts={[<State of={run.state ?? ""} />, run.algorithm, several(n(run.clients), "client"), travels(run)]} />
          </p>
        </div>
        {operate && !over && (
          <Confirm label="Stop the run" yes="Stop the run" title={`Stop ${run.name}?`} act={() => call("StopRun", { run: id })}>
            <p>The open round is not merged. The weights of the last merged round stay available. A stopped run cannot go on.</p>
          </Confirm>
        )}
        {operate && over && n(run.version) > 0 && (
          <ReleaseVersion run={run} version={n(run.version)} />
        )}
      </div>
      <Generated when={run.generated} />
      {run.reason && <p class={run.state === "failed" ? "failure" : "notice"}>{run.reason}</p>}
      {run.leftOut && <p class="notice">{run.leftOut}</p>}
      {run.warnings?.map((w) => <p key={w} class="notice">{w}</p>)}
      {!over && <WaitsFor what={waiting} now={now} />}
      <div class="bar-wide">
        <progress max={Math.max(n(run.rounds), 1)} value={merged(run)} aria-label="rounds" />
        <p><b>Round {count(current(run))}</b> of {count(n(run.rounds))}<span class="note">{over ? `${run.state} after ${took(run)}` : n(waiting?.silent) > 0 ? "time left unknown while it waits" : left(run, closed)}</span></p>
      </div>
      <Figures label="The run so far" items={[
        {
          label: "on validation days", value: skill.figure, tone: skill.word === "worse than" ? "warn" : undefined,
          note: scored.length ? `${skill.word} ${ref}, mean of ${several(n(scored.at(-1)!.evaluated), "client")}, round ${count(no(scored.at(-1)!))}` : "no round has been evaluated yet",
        },
        { label: "updates counted", value: count(sum((r) => n(r.counted))), note: since || "each exactly once" },
        { label: "received", value: bytes(sum((r) => n(r.bytes))), note: since || "updates of weights" },
        { label: "raw readings", value: "none", note: <a href="#/leaves">the protocol has no field for them; updates reveal something</a> },
        ...(newClients ? [{
          label: "new clients", value: better(n(newClients.scored) ? newClients.relativeMae : null).figure,
          note: `${better(newClients.relativeMae).word} ${ref}; ${count(n(newClients.scored))} scored of ${count(n(newClients.heldOut))} held out`,
        }] : []),
      ]} />
      <div class="two">
        <Skill scored={scored} against={ref} />
        <Loss rounds={closed.filter((r) => r.state === "merged" && n(r.loss) > 0)} hidden={closed.some((r) => r.state === "merged" && n(r.loss) === 0)} />
      </div>
      {!over && <Who run={run} open={rounds.at(-1)} />}
      <Rounds rounds={rounds} now={now} />
      <div class="two">
        <Section title="Plan" note="All settings as this run uses them.">
          <details><summary>Show the plan</summary><pre tabIndex={0} class="plan" aria-label="Plan" role="region">{plan || none}</pre></details>
        </Section>
        <Weights run={run} />
      </div>
      <Announce rounds={closed} />
    </>
  );
}

function travels(run: Run): string {
  const shared = n(run.sharedWeights), own = n(run.personalWeights);
  if (shared === 0) return "";
  return own > 0 ? `${run.partition} personal: ${count(shared)} of ${count(shared + own)} weights travel` : `all ${count(shared)} weights travel`;
}

// WaitsFor shows who delays the round, since when, until when, and what happens then.
function WaitsFor({ what: w, now }: { what?: Waits; now: number }) {
  if (!w || n(w.silent) === 0) return null;
  const silent = (w.agents ?? []).filter((a) => a.silent);
  const more = n(w.silent) - silent.reduce((sum, a) => sum + n(a.clients), 0);
  const then = w.replaces ? "asks other clients instead" : n(w.merges) === 0 ? "is abandoned, because nobody has answered"
    : n(w.merges) < n(w.needs) ? `is abandoned: ${count(n(w.merges))} of ${several(n(w.asked), "client")}, and the plan's quorum needs ${count(n(w.needs))}`
    : `merges ${count(n(w.merges))} of ${several(n(w.asked), "client")}`;
  return (
    <p class="notice" role="status">
      <b>Round {count(n(w.round) + 1)} waits</b> for {silent.map((a, i) => <span key={a.id}>{i > 0 ? ", " : ""}<a href={link([], { agent: a.id! })}>{a.name || a.id}</a> ({several(n(a.clients), "client")}, silent for {span(Math.max(now - n(a.seen), 0))})</span>)}
      {more > 0 ? ` and ${several(more, "client")} of other agents` : ""}. It gives up at <Time ms={n(w.givesUp)} /> and then {then}.{n(w.usualMs) > 0 ? ` Earlier rounds took ${span(n(w.usualMs))}.` : ""}
    </p>
  );
}

// left estimates the remaining time from the pace of the newest rounds.
function left(run: Run, closed: Round[]): string {
  if (run.state !== "running") return run.state ?? "";
  const some = closed.slice(-20);
  const first = some[0], last = some.at(-1);
  const rest = n(run.rounds) - n(run.round);
  if (!first || !last || some.length < 3 || n(last.closed) <= n(first.closed)) return "time left not known yet";
  const each = (n(last.closed) - n(first.closed)) / (some.length - 1);
  return `about ${span(Math.max(rest, 0) * each)} left`;
}

const line = (label: string, stroke: string): uPlot.Series => ({ label, stroke, width: 2, points: { show: false } });

function Skill({ scored, against: ref }: { scored: Round[]; against: string }) {
  const data = useMemo<uPlot.AlignedData>(() => [scored.map(no), scored.map((r) => 100 * (1 - n(r.relativeMae))), scored.map(() => 0)], [scored.length, scored.at(-1)?.round]);
  const last = scored.at(-1), b = better(last?.relativeMae ?? null);
  if (scored.length < 2) {
    return (
      <Section title={`Better than ${ref}`}>
        <p class="note">{scored.length ? `Round ${count(no(last!))}: ${b.figure} ${b.word} ${ref}. The curve begins with the second evaluation.` : "No evaluation yet. The plan's evaluate.every says how many rounds lie between two; 0 means never."}</p>
      </Section>
    );
  }
  const crossed = scored.find((r) => n(r.relativeMae) < 1);
  return (
    <Section title={`Better than ${ref}`}>
      <Chart
        label={`Mean error of the clients against ${ref}`}
        sentence={<>After round {count(no(last!))} the mean error on validation days is <b>{b.figure} {b.word}</b> {ref}{crossed ? `; the first round that was better is ${count(no(crossed))}` : ""}.</>}
        keys={<><Key kind="skill">shared weights</Key><Key kind="zero">{ref}</Key></>}
        data={data}
        options={() => ({
          scales: { x: { time: false }, y: { range: (_u, lo, hi) => { const pad = Math.max((Math.max(hi, 0) - Math.min(lo, 0)) * 0.08, 1); return [Math.min(lo, 0) - pad, Math.max(hi, 0) + pad]; } } },
          axes: [axis({ size: 28, values: (_u, v) => v.map((x) => (Number.isInteger(x) ? count(x) : "")) }), axis({ size: 54, values: (_u, v) => v.map((x) => `${fixed(x, 0)} %`) })],
          series: [{}, { ...line("better", colour("accent")), fill: colour("wash"), fillTo: 0 }, { ...line("reference", colour("muted")), width: 1.5, dash: [6, 4] }],
        })}
        read={(i) => <>round <b>{count(data[0][i]!)}</b>: {better(scored[i]?.relativeMae).figure} {better(scored[i]?.relativeMae).word} {ref} (relative MAE {fixed(scored[i]?.relativeMae, 3)})</>}
        head={["round", "relative MAE", "better by %", "clients"]}
        rows={() => [...scored].reverse().map((r) => [no(r), fixed(r.relativeMae, 3), fixed(100 * (1 - n(r.relativeMae)), 1), count(n(r.evaluated))])}
      />
    </Section>
  );
}

// Loss draws the training loss. The server hides the loss of rounds with fewer than ten clients.
function Loss({ rounds, hidden }: { rounds: Round[]; hidden: boolean }) {
  const data = useMemo<uPlot.AlignedData>(() => [rounds.map(no), rounds.map((r) => n(r.loss))], [rounds.length, rounds.at(-1)?.round]);
  const first = rounds[0], last = rounds.at(-1);
  return (
    <Section title="Training loss">
      {rounds.length < 2 ? <p class="note">{hidden ? "The loss of a round is shown from ten counted clients on: that of few says too much about their readings." : "The curve begins with the second merged round."}</p> : (
        <Chart
          label="Training loss by round"
          sentence={<>The mean training loss of the clients went from {fixed(n(first!.loss), 4)} in round {count(no(first!))} to <b>{fixed(n(last!.loss), 4)}</b> in round {count(no(last!))}.</>}
          keys={<Key kind="loss">mean over the round's clients</Key>}
          data={data}
          options={() => ({
            scales: { x: { time: false } },
            axes: [axis({ size: 28, values: (_u, v) => v.map((x) => (Number.isInteger(x) ? count(x) : "")) }), axis({ size: 60, values: (_u, v) => v.map((x) => String(+x.toPrecision(3))) })],
            series: [{}, line("loss", colour("second"))],
          })}
          read={(i) => <>round <b>{count(data[0][i]!)}</b>: loss {fixed(data[1]![i], 5)}</>}
          head={["round", "training loss"]}
          rows={() => [...rounds].reverse().slice(0, 500).map((r) => [no(r), fixed(n(r.loss), 5)])}
        />
      )}
    </Section>
  );
}

// Who shows the open round, with one square for each client. For large rounds, it shows a strip of squares, each of
// which represents many clients.
function Who({ run, open }: { run: Run; open?: Round }) {
  const few = open !== undefined && n(open.asked) <= squares;
  const round = n(open?.round);
  const poll = () => call("ListTurns", { run: run.id!, round, limit: squares });
  const live = useTopic(few ? `turns:${run.id}` : "", poll);
  const [table, show] = useState(false);
  if (!open) return <Section title="Who is in this round"><p class="note">No round is open.</p></Section>;
  // All numbers of the round come from the run's own event, as in the table of rounds. The squares come with another
  // event, which often describes another round if rounds are fast.
  const turns: Turn[] = few ? live?.turns ?? [] : [];
  const other = turns.length > 0 && n(turns[0]!.round) !== round ? `The squares show round ${count(n(turns[0]!.round) + 1)}.` : "";
  const asked = n(open.asked), done = n(open.counted);
  const sentence = `Round ${count(round + 1)}: ${count(done)} of ${several(asked, "client")} counted${n(open.late) ? `, ${count(n(open.late))} late` : ""}${n(open.lost) ? `, ${count(n(open.lost))} lost` : ""}.`;
  return (
    <Section title="Who is in this round" note={`${sentence} ${other}`} action={few && turns.length > 0 && <button type="button" class="small plain" aria-expanded={table} onClick={() => show(!table)}>{table ? "Hide the table" : "Show as table"}</button>}>
      {few ? (
        turns.length > 0 && (
          <div class={turns.length > 300 ? "cells tiny" : "cells"} role="img" aria-label={other || sentence}>
            {turns.map((t) => <i key={t.client} class={`cell ${t.state}`} title={`${t.client}: ${t.state}`} />)}
          </div>
        )
      ) : <Strip asked={asked} counted={done} />}
      <ul class="keys">
        <li><i class="cell counted" />{count(done)} counted</li>
        <li><i class="cell asked" />{count(Math.max(asked - done, 0))} asked, not counted yet</li>
        {n(open.late) > 0 && <li><i class="cell late" />{count(n(open.late))} late</li>}
        {n(open.lost) > 0 && <li><i class="cell lost" />{count(n(open.lost))} lost</li>}
      </ul>
      {table && (
        <Table label="Clients of the round" rows={turns} id={(t) => t.client!} columns={[
          { head: "client", of: (t) => <a href={link(["clients", t.client!])}>{t.client}</a> },
          { head: "state", of: (t) => <State of={t.state ?? ""} /> },
          { head: "from version", of: (t) => count(n(t.version)), number: true },
          { head: "examples", of: (t) => (t.state === "counted" ? count(n(t.examples)) : none), number: true },
        ]} />
      )}
    </Section>
  );
}

// Strip draws a hundred squares. For such a large round, the server sends only counts, so the order of the squares has
// no meaning.
function Strip({ asked, counted }: { asked: number; counted: number }) {
  const parts = 100;
  const full = asked > 0 ? (parts * counted) / asked : 0;
  return (
    <>
      <div class="strip" role="img" aria-label={`${count(counted)} of ${count(asked)} counted`}>
        {Array.from({ length: parts }, (_, i) => {
          const level = Math.min(Math.max(full - i, 0), 1);
          return <i key={i} class={level === 1 ? "full" : level === 0 ? "" : "part"} style={level > 0 && level < 1 ? { "--level": `${Math.round(100 * level)}%` } as any : undefined} />;
        })}
      </div>
      <p class="note">Each square stands for {count(asked / parts)} clients. Their order says nothing.</p>
    </>
  );
}

function Rounds({ rounds, now }: { rounds: Round[]; now: number }) {
  const [all, show] = useState(false);
  const rows = [...rounds].reverse().slice(0, all ? most : 8);
  const time = (r: Round) => (n(r.opened) > 0 ? span((n(r.closed) || now) - n(r.opened)) : none);
  return (
    <Section title="Rounds" action={rounds.length > 8 && <button type="button" class="small plain" aria-expanded={all} onClick={() => show(!all)}>{all ? "Only the newest" : `All ${count(rounds.length)}`}</button>}>
      <Table label="Rounds" rows={rows} id={(r) => String(r.round)} empty={<p class="note">No round has opened yet.</p>} columns={[
        { head: "round", of: (r) => count(no(r)), number: true },
        { head: "state", of: (r) => <State of={r.state ?? ""} /> },
        { head: "asked", of: (r) => count(n(r.asked)), number: true },
        { head: "counted", of: (r) => count(n(r.counted)), number: true },
        { head: "late", of: (r) => count(n(r.late)), number: true },
        { head: "lost", of: (r) => count(n(r.lost)), number: true },
        { head: "training loss", of: (r) => (n(r.loss) > 0 && r.state === "merged" ? fixed(n(r.loss), 4) : none), number: true },
        { head: "relative MAE", of: (r) => (n(r.evaluated) > 0 ? fixed(r.relativeMae, 3) : none), number: true, title: "of the weights before the round, on validation days" },
        { head: "took", of: time, number: true },
        { head: "received", of: (r) => bytes(n(r.bytes)), number: true },
      ]} />
    </Section>
  );
}

// Announce tells screen readers when rounds end, at most every 10 s.
function Announce({ rounds }: { rounds: Round[] }) {
  const [text, say] = useState("");
  const last = useRef(Date.now());
  const newest = rounds.at(-1);
  useEffect(() => {
    if (!newest || Date.now() - last.current < 10e3) return;
    last.current = Date.now();
    say(`Round ${no(newest)} ${newest.state}, ${n(newest.counted)} of ${n(newest.asked)} counted.`);
  }, [newest?.round]);
  return <p class="hidden" role="status">{text}</p>;
}
