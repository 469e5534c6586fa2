import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Explained } from "../api";
import { useViewer } from "../context";
import { count, n, several } from "../format";
import { go, link } from "../router";
import { Confirm, Empty, Failure, Field, NumberField, Section, useAsk, useTitle, Waiting } from "../ui";

const own = "own"; // the choice of a plan that the user writes
const longest = 1 << 20; // bytes of a plan

// Start lets the user choose a plan, shows the server's explanation, and starts exactly the explained plan.
export function Start() {
  useTitle("Start a run");
  const { operate } = useViewer();
  const asked = useAsk(async () => {
    const [plans, runs] = await Promise.all([call("ListPlans", {}), call("ListRuns", { limit: 20 })]);
    return { plans: plans.plans ?? [], runs: runs.runs ?? [] };
  }, []);
  const [choice, choose] = useState("");
  const [text, write] = useState("");
  const [rounds, setRounds] = useState<number>();
  const [wait, setWait] = useState<number>();
  const [busy, setBusy] = useState(false);
  const [error, fail] = useState<Error>();
  const [explained, explain] = useState<Explained>();
  const form = useRef<HTMLFormElement>(null);
  const answer = useRef<HTMLElement>(null);
  useEffect(() => {
    if (explained) answer.current?.focus();
  }, [explained]);

  // A change makes the explanation stale, so the user must request a new one before starting.
  const change = <T,>(set: (x: T) => void) => (x: T) => {
    explain(undefined);
    fail(undefined);
    set(x);
  };
  const pick = async (to: string) => {
    change(choose)(to);
    const [kind, name] = to.split(":", 2);
    try {
      if (kind === "run") write((await call("GetRun", { run: name!, rounds: 1 })).plan ?? "");
      else if (kind === "plan") write(asked.value?.plans.find((p) => p.name === name)?.plan ?? "");
    } catch (e) {
      fail(e as Error);
    }
  };
  useEffect(() => {
    const first = asked.value?.plans[0]?.name;
    if (!choice && asked.value) void pick(first ? `plan:${first}` : own);
  }, [asked.value]);
  const load = async (file: File | undefined) => {
    if (!file) return;
    if (file.size > longest) return fail(new Error(`${file.name} is longer than 1 MiB.`));
    change(write)(await file.text());
  };
  const ask = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    fail(undefined);
    try {
      explain(await call("ExplainPlan", { plan: text, rounds: rounds ?? 0 }));
    } catch (x) {
      explain(undefined);
      fail(x as Error);
    } finally {
      setBusy(false);
    }
  };
  const start = async () => {
    const { run } = await call("StartRun", { plan: explained!.plan!, clients: wait ?? 0 });
    go(link(["runs", run!]));
  };

  if (!operate) return <><h1>Start a run</h1><Empty title="Only operators and admins start runs."><p>Ask an admin for the role operator.</p></Empty></>;
  if (!asked.value) return <><h1>Start a run</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const { plans, runs } = asked.value;
  const wanted = Math.max(n(explained?.wanted), wait ?? 0), there = n(explained?.clients);
  const begins = there >= wanted ? `It begins now: it needs ${several(wanted, "client")}, and the fleet has ${count(there)}.` : `It waits until ${several(wanted, "client")} are connected; the fleet has ${count(there)} now.`;
  return (
    <>
      <p class="crumb"><a href="#/runs">Runs</a></p>
      <h1>Start a run</h1>
      <form ref={form} class="card" onSubmit={ask} aria-label="What to train">
        <div class="filters">
          <Field label="Plan" hint={plans.find((p) => `plan:${p.name}` === choice)?.about} of={(id, hint) => (
            <select id={id} aria-describedby={hint} value={choice} onChange={(e) => pick(e.currentTarget.value)}>
              <optgroup label="Plans of this program">{plans.map((p) => <option key={p.name} value={`plan:${p.name}`}>{p.name}</option>)}</optgroup>
              {runs.length > 0 && <optgroup label="Plans of earlier runs">{runs.map((r) => <option key={r.id} value={`run:${r.id}`}>{r.name} {r.id}</option>)}</optgroup>}
              <option value={own}>A plan of your own</option>
            </select>
          )} />
          <NumberField label="Rounds" hint="Empty: as in the plan." value={rounds} set={change(setRounds)} min={1} max={1e6} />
          <NumberField label="Wait for clients" hint="Empty: as few as the plan needs." value={wait} set={change(setWait)} min={1} max={1e9} />
        </div>
        <details open={choice === own}>
          <summary>Show or change the plan</summary>
          {choice === own && <Field label="File" of={(id) => <input id={id} type="file" accept=".yaml,.yml" onChange={(e) => load(e.currentTarget.files?.[0])} />} />}
          <Field label="The plan, as YAML" of={(id) => <textarea id={id} rows={12} spellcheck={false} autocomplete="off" required value={text} onInput={(e) => change(write)(e.currentTarget.value)} />} />
        </details>
        <Failure error={error} />
        <p class="buttons"><button type="submit" class={explained ? undefined : "primary"} disabled={busy}>{busy ? "Explaining…" : "Explain"}</button></p>
      </form>
      <p class="hidden" role="status">{explained ? `The server has explained ${explained.name}. ${begins}` : ""}</p>
      {explained && (
        <section class="card" ref={answer} tabIndex={-1} aria-labelledby="explained">
          <h2 id="explained">{explained.name}: {several(n(explained.rounds), "round")}</h2>
          <p>{begins}</p>
          {explained.warnings?.map((w) => <p key={w} class="notice">{w}</p>)}
          <pre class="plan" tabIndex={0} role="region" aria-label={`What ${explained.name} trains, sends and costs`}>{explained.text}</pre>
          <p class="note">As <code>loadstar plan explain</code> prints it, for the clients of the fleet. “This machine” is the server; the clients train on their own.</p>
          <p class="buttons">
            <Confirm label="Start the run" danger={false} yes="Start the run" title={`Start ${explained.name}?`} ready={() => form.current?.reportValidity() ?? true} act={start}>
              <p>All agents whose policy allows it train {several(n(explained.rounds), "round")} with their clients' readings and send updates of weights. {begins} You can stop it on its page.</p>
            </Confirm>
          </p>
        </section>
      )}
      {!explained && <Section title="What happens next"><p class="note">“Explain” shows what the plan trains, sends and costs, and for whom the run would wait. Nothing starts before you confirm it.</p></Section>}
    </>
  );
}
