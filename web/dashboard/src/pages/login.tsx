import { useEffect, useRef, useState } from "preact/hooks";
import { login, type Info, type Whoami } from "../api";
import { go } from "../router";
import { Copy, Failure, useTitle } from "../ui";

// Login uses the code of a link once. The code is in the fragment of the address, which browsers do not send to
// servers. Login first removes it from the address bar.
export function Login({ info, who, code, ended, done }: { info: Info; who?: Whoami; code: string; ended: boolean; done: () => Promise<void> }) {
  useTitle("Sign in");
  const [secret, keep] = useState("");
  const [error, fail] = useState<Error>();
  const [busy, setBusy] = useState(false);
  const used = useRef("");

  const enter = async (c: string) => {
    setBusy(true);
    fail(undefined);
    try {
      await login(c);
      await done();
    } catch (e) {
      fail(e as Error);
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    if (!code || used.current === code) return;
    used.current = code;
    go("#/login", true);
    // A user who is signed in must confirm, because a foreign link must not change the user unnoticed.
    if (who) keep(code);
    else void enter(code);
  }, [code]);

  if (who && secret) {
    return (
      <div class="login card">
        <h1>Sign in with this link?</h1>
        <p>You are signed in as <b>{who.name}</b> ({who.role}). The link may belong to another user.</p>
        <Failure error={error} />
        <p class="buttons">
          <button type="button" class="primary" disabled={busy} onClick={() => enter(secret)}>Use the link</button>
          <a class="button" href="#/">Stay {who.name}</a>
        </p>
      </div>
    );
  }
  if (who && !busy) {
    return (
      <div class="login card">
        <h1>You are signed in</h1>
        <p>as <b>{who.name}</b> ({who.role}).</p>
        <p><a class="button primary" href="#/">Go to the fleet</a></p>
      </div>
    );
  }
  return (
    <div class="login card">
      <h1>Sign in</h1>
      {ended && !error && <p class="line" role="status">Your session has ended. Sign in again.</p>}
      <Failure error={error} />
      {busy ? (
        <p role="status">Signing in…</p>
      ) : (
        <>
          {info.methods?.includes("oidc") && (
            <p><a class="button primary" href="api/oidc/start">Sign in with your organisation</a></p>
          )}
          {(info.methods ?? ["login"]).includes("login") && (
            <>
              <p>{info.methods?.includes("oidc") ? "Or make" : "Make"} a link where you have an operator's certificate, and open it within a minute. It works once.</p>
              <Copy text="loadstar user login" label="command that makes a link" />
              <p class="note">No certificate? An admin can invite you: <code>loadstar user login NAME</code> prints a link for you.</p>
            </>
          )}
        </>
      )}
    </div>
  );
}
