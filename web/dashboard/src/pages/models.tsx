import { call, type Release, type ReportDay } from "../api";
import { useViewer } from "../context";
import { count, day, fixed, n, none, percent } from "../format";
import { link } from "../router";
import { Confirm, Copy, Empty, Failure, Section, State, Table, Time, useAsk, useTitle, Waiting } from "../ui";

const counted = 12; // the newest releases whose reports are fetched

const nameOf = (r: Release) => `${r.release?.name}@${n(r.release?.number)}`;

export function Models() {
  useTitle("Models");
  const { operate } = useViewer();
  const asked = useAsk(async () => {
    const releases = (await call("ListReleases", {})).releases ?? [];
    const reports = new Map<string, ReportDay | undefined>();
    await Promise.all(releases.slice(0, counted).map(async (r) => reports.set(r.release!.id!, (await call("ListReports", { release: r.release!.id!, days: 1 })).days?.[0])));
    return { releases, reports };
  }, []);
  if (!asked.value) return <><h1>Models</h1>{asked.error ? <Failure error={asked.error} again={asked.again} /> : <Waiting />}</>;
  const { releases, reports } = asked.value;
  const of = (r: Release) => reports.get(r.release!.id!);
  const byID = new Map(releases.map((r) => [r.release!.id!, r]));
  const state = (r: Release) => (n(r.withdrawn) > 0 ? "withdrawn" : r.offered ? "offered" : "superseded");
  const lines = [...new Set(releases.map((r) => r.release!.name!))].map((name) => ({
    name, chain: releases.filter((r) => r.release!.name === name).reverse(),
  }));
  return (
    <>
      <h1>Models</h1>
      <Failure error={asked.error} again={asked.again} />
      {releases.length === 0 ? (
        <div class="card">
          <Empty title="No model is released yet.">
            <p>A release offers a run's weights to all agents. Each client tries it on its own readings, and uses it only where it is better.</p>
            <Copy text="loadstar release create RUN --name day" label="command that releases a run's weights" />
          </Empty>
        </div>
      ) : (
        <>
          <Section title="Releases" note="Serving: clients that reported the release on their newest day.">
            <Table label="Releases" rows={releases} id={(r) => r.release!.id!} columns={[
              { head: "release", of: (r) => <b>{nameOf(r)}</b> },
              { head: "state", of: (r) => <State of={state(r)} /> },
              { head: "role", of: (r) => r.release?.role || none },
              { head: "from", of: (r) => <a href={link(["runs", r.release!.run!])}><code>{r.release!.run}</code> v{count(n(r.release!.version))}</a> },
              { head: "serving", of: (r) => (of(r) ? <span title={`reported for ${day(n(of(r)!.day))}`}>{count(n(of(r)!.clients))} of {count(n(of(r)!.total))}</span> : none), number: true },
              { head: "relative MAE", of: (r) => fixed(of(r)?.relativeMae, 2), number: true, title: "median over clients, against last week's profile" },
              { head: "coverage", of: (r) => percent(of(r)?.coverage), number: true },
              { head: "drifting", of: (r) => (of(r) ? count(n(of(r)!.drifting)) : none), number: true },
              { head: "want a round", of: (r) => (of(r) ? count(n(of(r)!.wanting)) : none), number: true },
              { head: "released", of: (r) => <span title={`by ${r.actor}`}><Time ms={n(r.created)} /></span> },
              ...(operate ? [{
                head: "action",
                of: (r: Release) => n(r.withdrawn) > 0 ? <Time ms={n(r.withdrawn)} /> : (
                  <Confirm small label="Withdraw" yes="Withdraw" title={`Withdraw ${nameOf(r)}?`} act={async () => { await call("WithdrawRelease", { release: r.release!.id! }); asked.again(); }}>
                    <p>Agents stop using it at their next check-in, and go back to {byID.has(r.parent ?? "") ? nameOf(byID.get(r.parent!)!) : "the release before, or to last week's profile"}.</p>
                  </Confirm>
                ),
              }] : []),
            ]} />
          </Section>
          <Section title="Lineage" note="Oldest first. A client moves along a line only if the next release is better on its own readings.">
            {lines.map(({ name, chain }) => (
              <p key={name} class="chain"><b>{name}</b>{chain.map((r) => <span key={r.release!.id}><State of={state(r)}>@{n(r.release!.number)}</State></span>)}</p>
            ))}
          </Section>
        </>
      )}
    </>
  );
}
