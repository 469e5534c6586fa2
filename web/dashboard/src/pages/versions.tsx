import { useState } from "preact/hooks";
import { call, type Run, type Version } from "../api";
import { useViewer } from "../context";
import { count, n } from "../format";
import { go } from "../router";
import { ended } from "./runs";
import { Ago, Confirm, Copy, Failure, Field, Section, Table, useAsk } from "../ui";

// Release offers a version of a run's weights to all agents.
export function ReleaseVersion({ run, version, small }: { run: Run; version: number; small?: boolean }) {
  const [name, set] = useState("");
  const act = async () => {
    await call("CreateRelease", { run: run.id!, version, name: name.trim() });
    go("#/models");
  };
  return (
    <Confirm label={small ? "Release" : "Release the weights"} about={small ? `version ${version}` : undefined} small={small} danger={false} yes="Release" title={`Release version ${count(version)} of ${run.name}?`} act={act}>
      <p>All agents are offered these weights. Each client tries them on its own readings and uses them only where they are better. A release of the same name replaces the one before; it can be withdrawn on the page Models.</p>
      <Field label="Name of the release" hint={`Empty: ${run.name}`} of={(id, hint) => <input id={id} aria-describedby={hint} maxLength={64} pattern="[A-Za-z0-9._\-]*" autocomplete="off" spellcheck={false} value={name} onInput={(e) => set(e.currentTarget.value)} />} />
    </Confirm>
  );
}

const origin = (v: Version): string => (v.rolledBack ? `rolled back to version ${count(n(v.from))}` : n(v.version) === 0 ? "start" : "merge");

// Weights shows a run's versions, and lets operators release a version or return to it. It does not refresh by itself,
// because the versions of a fast run would move while a user reads them.
export function Weights({ run }: { run: Run }) {
  const { operate } = useViewer();
  const begun = n(run.version) > 0;
  const [open, show] = useState(false);
  const asked = useAsk(async () => (open ? (await call("ListVersions", { run: run.id! })).versions ?? [] : []), [run.id, open]);
  const [said, say] = useState("");
  const newest = n(asked.value?.[0]?.version);
  const back = async (v: Version) => {
    const made = await call("RollBackRun", { run: run.id!, version: n(v.version) });
    say(`Version ${count(n(made.version))} now has the weights of version ${count(n(v.version))}.`);
    asked.again();
  };
  return (
    <Section
      title="Weights"
      note={begun ? `The newest version is ${count(n(run.version))}. The server keeps the newest ten.` : "There are none before the first round is merged."}
      action={begun && <span class="buttons">{open && <button type="button" class="small plain" onClick={asked.again}>Refresh</button>}<button type="button" class="small plain" aria-expanded={open} onClick={() => show(!open)}>{open ? "Hide the versions" : "Show the versions"}</button></span>}
    >
      <Copy text={`loadstar run weights ${run.id} -o ${run.name || "weights"}.safetensors`} label="command that saves the weights" />
      <p role="status" class={said ? "notice" : "hidden"}>{said}</p>
      <Failure error={asked.error} again={asked.again} />
      {open && asked.value && asked.value.length > 0 && (
        <Table label="Versions" rows={asked.value} id={(v) => String(n(v.version))} columns={[
          { head: "version", of: (v) => count(n(v.version)), number: true },
          { head: "made", of: (v) => <Ago ms={n(v.created)} /> },
          { head: "by", of: origin },
          ...(operate ? [{
            head: "action",
            of: (v: Version) => (
              <span class="buttons">
                {n(v.version) > 0 && <ReleaseVersion small run={run} version={n(v.version)} />}
                {n(v.version) !== newest && (
                  <Confirm small label="Roll back" about={`to version ${n(v.version)}`} yes="Roll back" title={`Roll back to version ${count(n(v.version))}?`} act={() => back(v)}>
                    <p>The weights of version {count(n(v.version))} become the newest version. {ended(run) ? "The run stays ended." : "The open round is abandoned, and the next round trains from them."} The versions in between stay stored. Personal layers at the clients do not change.</p>
                  </Confirm>
                )}
              </span>
            ),
          }] : []),
        ]} />
      )}
    </Section>
  );
}
