import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Token } from "../api";
import { useViewer } from "../context";
import { count, n, none, several } from "../format";
import { useTopic } from "../live";
import { Confirm, Copy, Empty, Failure, Field, NumberField, Pages, Section, State, Table, Time, useAsk, useTitle } from "../ui";

const page = 50;
const hours = [["1 hour", 1], ["1 day", 24], ["30 days", 720], ["1 year", 8760]] as const;

type Created = { token: string; server: string; id: string; expires: number; says: string };

// limits describes what a token allows. The default number of clients is the same as on the command line.
const limits = (uses: number, clients: number, pattern: string): string =>
  `${several(uses, "agent")} with ${clients > 0 ? `up to ${several(clients, "client")} each` : "any number of clients each"}${pattern ? ` named ${pattern}` : ""}`;

const state = (t: Token): string => (n(t.revoked) > 0 ? "revoked" : n(t.uses) <= 0 ? "used up" : n(t.expires) <= Date.now() ? "expired" : "valid");

export function Tokens() {
  useTitle("Join tokens");
  const { operate } = useViewer();
  const [after, turn] = useState("");
  const fleet = useTopic("fleet", () => call("GetFleet", {}));
  const asked = useAsk(async () => (operate ? (await call("ListTokens", { limit: page, after })).tokens ?? [] : []), [after, operate, n(fleet?.agents)]);
  const [created, show] = useState<Created>();
  const shown = useRef<HTMLDivElement>(null);
  useEffect(() => shown.current?.focus(), [created]);
  if (!operate) return <><h1>Join tokens</h1><Empty title="Only operators and admins see join tokens."><p>Ask an admin for the role operator.</p></Empty></>;
  return (
    <>
      <p class="crumb"><a href="#/">Fleet</a></p>
      <h1>Join tokens</h1>
      <p class="lead">A token lets agents join. It is a secret: give it only to those who should join, and revoke it if it has leaked.</p>
      {created && (
        <div class="invitation" role="status" tabIndex={-1} ref={shown}>
          <p>Token <code>{created.id}</code> for {created.says}, until <Time ms={created.expires} />. It is shown only now. Write it to a file on the agent's machine:</p>
          <Copy text={created.token} label="token" />
          <p>and join there:</p>
          <Copy text={`loadstar agent join ${created.server} --token-file FILE`} label="command that joins" />
          <p class="note">The address is made of the first of <code>hosts</code> in server.yaml. Agents must reach it under that name.</p>
        </div>
      )}
      <Create done={(c) => { show(c); asked.again(); }} />
      <Section title="Tokens" note="Newest first. The server stores no token, only what it allows.">
        <Failure error={asked.error} again={asked.again} />
        {asked.value && (
          <Table label="Join tokens" rows={asked.value} id={(t) => t.id!} empty={<p class="note">No token has been created yet.</p>} columns={[
            { head: "token", of: (t) => <code>{t.id}</code> },
            { head: "state", of: (t) => <State of={state(t)} /> },
            { head: "note", of: (t) => t.note || none },
            { head: "joined", of: (t) => count(n(t.joined)), number: true },
            { head: "left", of: (t) => count(n(t.uses)), number: true },
            { head: "clients each", of: (t) => (n(t.clients) ? count(n(t.clients)) : "any"), number: true },
            { head: "names", of: (t) => t.pattern || "any" },
            { head: "until", of: (t) => <Time ms={n(t.expires)} /> },
            { head: "by", of: (t) => t.actor || none },
            {
              head: "action",
              of: (t) => state(t) !== "valid" ? "" : (
                <Confirm small label="Revoke" about={`token ${t.id}`} yes="Revoke" title={`Revoke token ${t.id}?`} act={async () => { await call("RevokeToken", { id: t.id! }); asked.again(); }}>
                  <p>Nobody can join with it any more. {n(t.joined) > 0 ? `The ${several(n(t.joined), "agent")} that joined with it stay.` : "No agent has joined with it."}</p>
                </Confirm>
              ),
            },
          ]} />
        )}
        <Pages first={after ? () => turn("") : undefined} next={asked.value?.length === page ? () => turn(asked.value!.at(-1)!.id!) : undefined} busy={asked.busy} />
      </Section>
    </>
  );
}

function Create({ done }: { done: (c: Created) => void }) {
  const [note, setNote] = useState("");
  const [uses, setUses] = useState<number | undefined>(1);
  const [clients, setClients] = useState<number | undefined>(100);
  const [pattern, setPattern] = useState("");
  const [life, setLife] = useState(24);
  const form = useRef<HTMLFormElement>(null);
  const says = limits(uses ?? 0, clients ?? 0, pattern.trim());
  const create = async () => {
    const t = await call("CreateToken", { note: note.trim(), uses: uses ?? 0, clients: clients ?? 0, pattern: pattern.trim(), ttlSeconds: life * 3600 });
    done({ token: t.token ?? "", server: t.server || "https://SERVER:7443", id: t.id ?? "", expires: n(t.expires), says });
    setNote("");
  };
  return (
    <form ref={form} class="card" aria-label="A new token" onSubmit={(e) => e.preventDefault()}>
      <div class="filters">
        <Field label="Note" hint="For people: in this list and the audit log." of={(id, hint) => <input id={id} aria-describedby={hint} maxLength={120} autocomplete="off" value={note} onInput={(e) => setNote(e.currentTarget.value)} />} />
        <NumberField label="Agents that may join" value={uses} set={setUses} min={1} max={1e6} required />
        <NumberField label="Clients of each agent" hint="0: the server's limit." value={clients} set={setClients} min={0} max={1e6} required />
        <Field label="Names of clients" hint="Empty: any. * stands for any characters." of={(id, hint) => <input id={id} aria-describedby={hint} maxLength={120} autocomplete="off" spellcheck={false} placeholder="feeder-12-*" value={pattern} onInput={(e) => setPattern(e.currentTarget.value)} />} />
        <Field label="Valid for" of={(id) => <select id={id} value={String(life)} onChange={(e) => setLife(Number(e.currentTarget.value))}>{hours.map(([word, h]) => <option key={h} value={h}>{word}</option>)}</select>} />
      </div>
      <p class="buttons">
        <Confirm label="Create a token" danger={false} yes="Create" title="Create a join token?" ready={() => form.current?.reportValidity() ?? true} act={create}>
          <p>Whoever has the token can join this fleet until it expires: {says}. The audit log records that you created it.</p>
        </Confirm>
      </p>
    </form>
  );
}
