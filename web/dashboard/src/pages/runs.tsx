import { call, type Run } from "../api";
import { useViewer } from "../context";
import { count, n, no, span } from "../format";
import { useTopic } from "../live";
import { link } from "../router";
import { Ago, Copy, Empty, Failure, Generated, State, Table, useAsk, useTitle, Waiting } from "../ui";

export const ended = (r: Run): boolean => ["finished", "stopped", "failed"].includes(r.state ?? "");

// current returns the number of the newest round, and merged returns the number of rounds that are over.
export const current = (r: Run): number => (r.weights ? Math.min(no(r), n(r.rounds)) : 0);
export const merged = (r: Run): number => (r.state === "finished" ? n(r.rounds) : n(r.round));

export const took = (r: Run): string => (n(r.started) > 0 ? span((n(r.finished) || Date.now()) - n(r.started)) : "-");

export function Progress({ run }: { run: Run }) {
  return (
    <span class="progress">
      <progress max={Math.max(n(run.rounds), 1)} value={merged(run)} aria-label={`rounds of ${run.name}`} />
      <span>{count(current(run))} of {count(n(run.rounds))}</span>
    </span>
  );
}

export function Runs() {
  useTitle("Runs");
  const { operate } = useViewer();
  const poll = () => call("ListRuns", { limit: 20 });
  const live = useTopic("runs", poll);
  const asked = useAsk(poll, []);
  const all = useAsk(() => call("ListRuns", { limit: 200 }), []);
  const answer = live ?? asked.value;
  if (!answer) return <><h1>Runs</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const newest = answer.runs ?? [];
  const seen = new Set(newest.map((r) => r.id));
  const runs = [...newest, ...(all.value?.runs ?? []).filter((r) => !seen.has(r.id))];
  return (
    <>
      <div class="head"><h1>Runs</h1>{operate && <a class="button primary" href="#/start">Start a run</a>}</div>
      <Generated when={runs.some((r) => r.generated)} />
      <div class="card">
        <Table
          label="Runs"
          rows={runs}
          id={(r) => r.id!}
          empty={
            <Empty title="No run yet.">
              <p>A run trains one plan with all clients of the fleet. Start one:</p>
              <Copy text="loadstar run start plans/day-ahead.yaml" label="command that starts a run" />
            </Empty>
          }
          columns={[
            { head: "run", of: (r) => <a href={link(["runs", r.id!])}><b>{r.name}</b> <code>{r.id}</code></a> },
            { head: "state", of: (r) => <State of={r.state ?? ""} /> },
            { head: "rounds", of: (r) => <Progress run={r} /> },
            { head: "clients", of: (r) => count(n(r.clients)), number: true },
            { head: "algorithm", of: (r) => r.algorithm },
            { head: "created", of: (r) => <Ago ms={n(r.created)} /> },
            { head: "took", of: took, number: true },
            { head: "note", of: (r) => r.reason ?? "" },
          ]}
        />
      </div>
    </>
  );
}
