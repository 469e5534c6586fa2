import { useId, useState } from "preact/hooks";
import { call, type Certificate, type User } from "../api";
import { useViewer } from "../context";
import { n } from "../format";
import { Confirm, Copy, Failure, Section, State, Table, Time, useAsk, useTitle } from "../ui";

const roles = ["viewer", "operator", "admin"];
const meaning: Record<string, string> = { viewer: "sees everything", operator: "also starts, stops and rolls back runs, releases models, creates join tokens, revokes agents", admin: "also manages people" };

export function People() {
  const { admin, who } = useViewer();
  useTitle(admin ? "People" : "Your sessions");
  return (
    <>
      <h1>{admin ? "People" : "Your sessions"}</h1>
      {!admin && <p class="lead">You are <b>{who.name}</b>, {who.role}: {meaning[who.role ?? "viewer"]}.</p>}
      {admin && <Users />}
      <Sessions />
      {admin && <Certificates />}
    </>
  );
}

type Invitation = { user: string; link: string; expires: number };

async function invite(user: string): Promise<Invitation> {
  const l = await call("CreateLogin", { user, ttlSeconds: 24 * 3600 });
  const page = (l.page || location.origin + location.pathname).replace(/\/+$/, "");
  return { user, link: `${page}/#/login?code=${encodeURIComponent(l.code ?? "")}`, expires: n(l.expires) };
}

function Users() {
  const { who } = useViewer();
  const asked = useAsk(() => call("ListUsers", {}), []);
  const [error, fail] = useState<Error>();
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [invited, setInvited] = useState<Invitation>();
  const ids = [useId(), useId()];
  const attempt = async (act: () => Promise<unknown>) => {
    fail(undefined);
    try {
      await act();
      asked.again();
    } catch (e) {
      fail(e as Error);
    }
  };
  const add = (e: Event) => {
    e.preventDefault();
    void attempt(async () => {
      await call("PutUser", { name: name.trim(), role });
      setInvited(await invite(name.trim()));
      setName("");
    });
  };
  return (
    <Section title="Users" note={roles.map((r) => `${r}: ${meaning[r]}`).join(" · ")}>
      <Failure error={error ?? asked.error} />
      {invited && (
        <div class="invitation" role="status">
          <p>Invitation for <b>{invited.user}</b>. It works once, until <Time ms={invited.expires} />, and is shown only now:</p>
          <Copy text={invited.link} label="invitation link" />
        </div>
      )}
      {asked.value && (
        <Table label="Users" rows={asked.value.users ?? []} id={(u) => u.name!} columns={[
          { head: "user", of: (u) => <b>{u.name}</b> },
          {
            head: "role",
            of: (u) => u.name === who.name || u.source === "oidc" ? u.role : (
              <select aria-label={`role of ${u.name}`} value={u.role} onChange={(e) => { const to = e.currentTarget.value; void attempt(() => call("PutUser", { name: u.name!, role: to })); }}>
                {roles.map((r) => <option key={r} value={r}>{r}</option>)}
              </select>
            ),
          },
          { head: "added by", of: (u) => u.source },
          { head: "since", of: (u) => <Time ms={n(u.created)} /> },
          {
            head: "action",
            of: (u: User) => u.name === who.name ? "you" : (
              <span class="buttons">
                <button type="button" class="small" onClick={() => attempt(async () => setInvited(await invite(u.name!)))}>Invite<span class="hidden"> {u.name}</span></button>
                <Confirm small label="Remove" yes="Remove" title={`Remove ${u.name}?`} act={async () => { await call("RemoveUser", { name: u.name! }); asked.again(); }}>
                  <p>Ends all sessions of this user and revokes the user's certificates.</p>
                </Confirm>
              </span>
            ),
          },
        ]} />
      )}
      <form class="filters" onSubmit={add}>
        <div class="field"><label for={ids[0]}>Name of a new user</label><input id={ids[0]} required maxLength={64} autocomplete="off" value={name} onInput={(e) => setName(e.currentTarget.value)} /></div>
        <div class="field"><label for={ids[1]}>Role</label><select id={ids[1]} value={role} onChange={(e) => setRole(e.currentTarget.value)}>{roles.map((r) => <option key={r}>{r}</option>)}</select></div>
        <button type="submit" class="primary">Add and invite</button>
      </form>
    </Section>
  );
}

function Sessions() {
  const { admin } = useViewer();
  const asked = useAsk(() => call("ListSessions", {}), []);
  return (
    <Section title={admin ? "Sessions" : "Open sessions"}>
      <Failure error={asked.error} again={asked.again} />
      {asked.value && (
        <Table label="Sessions" rows={asked.value.sessions ?? []} id={(s) => s.id!} columns={[
          { head: "user", of: (s) => <b>{s.user}</b> },
          { head: "by", of: (s) => s.via },
          { head: "since", of: (s) => <Time ms={n(s.created)} /> },
          { head: "until", of: (s) => <Time ms={n(s.expires)} /> },
          {
            head: "action",
            of: (s) => (
              <Confirm small label="End" yes="End the session" title={`End this session of ${s.user}?`} act={async () => { await call("EndSession", { id: s.id! }); asked.again(); }}>
                <p>Whoever uses it must sign in again.</p>
              </Confirm>
            ),
          },
        ]} />
      )}
    </Section>
  );
}

function Certificates() {
  const asked = useAsk(() => call("ListCertificates", {}), []);
  const state = (c: Certificate) => (n(c.revoked) > 0 ? "revoked" : n(c.expires) < Date.now() ? "expired" : "valid");
  return (
    <Section title="Certificates of operators" note={<>For the command line. Issue one: <code>loadstar user certificate create NAME</code></>}>
      <Failure error={asked.error} again={asked.again} />
      {asked.value && (
        <Table label="Certificates" rows={asked.value.certificates ?? []} id={(c) => c.serial!} columns={[
          { head: "serial", of: (c) => <code title={c.serial}>{c.serial?.slice(0, 12)}</code> },
          { head: "user", of: (c) => <b>{c.user}</b> },
          { head: "state", of: (c) => <State of={state(c)} /> },
          { head: "issued", of: (c) => <Time ms={n(c.issued)} /> },
          { head: "until", of: (c) => <Time ms={n(c.expires)} /> },
          {
            head: "action",
            of: (c) => state(c) !== "valid" ? "" : (
              <Confirm small label="Revoke" yes="Revoke" title={`Revoke this certificate of ${c.user}?`} act={async () => { await call("RevokeCertificate", { serial: c.serial! }); asked.again(); }}>
                <p>Commands that use it are refused from now on. This cannot be undone.</p>
              </Confirm>
            ),
          },
        ]} />
      )}
    </Section>
  );
}
