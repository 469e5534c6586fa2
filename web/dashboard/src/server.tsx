// The page of a server.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "./app.css";
import { call, info as askInfo, logout, signedOut, type Info, type Whoami } from "./api";
import { ViewerContext, type Viewer } from "./context";
import { age } from "./format";
import { useLine } from "./live";
import { Audit } from "./pages/audit";
import { Client } from "./pages/client";
import { Data } from "./pages/data";
import { Fleet } from "./pages/fleet";
import { Leaves } from "./pages/leaves";
import { Login } from "./pages/login";
import { Models } from "./pages/models";
import { People } from "./pages/people";
import { RunPage } from "./pages/run";
import { Runs } from "./pages/runs";
import { Start } from "./pages/start";
import { Tokens } from "./pages/tokens";
import { go, link, useRoute } from "./router";
import { Empty, Failure, Frame, useNow, useTitle, Waiting } from "./ui";

const pages: [string, string, string][] = [
  ["fleet", "Fleet", "#/"],
  ["runs", "Runs", "#/runs"],
  ["models", "Models", "#/models"],
  ["data", "Data health", "#/data"],
  ["audit", "Audit", "#/audit"],
];

function Page({ path, query }: { path: string[]; query: URLSearchParams }) {
  const [first = "", second] = path;
  if (first === "" && path.length === 0) return <Fleet query={query} />;
  if (first === "runs" && second) return <RunPage key={second} id={second} />;
  if (first === "clients" && second) return <Client key={second} name={second} />;
  const plain: Record<string, preact.ComponentChild> = {
    runs: <Runs />, start: <Start />, tokens: <Tokens />, models: <Models />, data: <Data />, audit: <Audit query={query} />, people: <People />, leaves: <Leaves />,
  };
  return <>{plain[first] ?? <NoPage />}</>;
}

function NoPage() {
  useTitle("No such page");
  return (
    <>
      <h1>No such page</h1>
      <Empty title="This address names no page."><p><a href="#/">Go to the fleet</a></p></Empty>
    </>
  );
}

// Connection shows a message when the page is not up to date.
function Connection() {
  const line = useLine();
  const now = useNow();
  const [slow, show] = useState(false);
  useEffect(() => {
    if (line.state === "live" || line.state === "connecting") return show(false);
    const t = setTimeout(() => show(true), 700); // do not report a connection that is restored at once
    return () => clearTimeout(t);
  }, [line.state]);
  if (!slow || line.last === 0) return null;
  const ago = age(now - line.last);
  return line.state === "polling" ? (
    <p class="line" role="status">Too many people look at this server. The page asks every 10 s; last update {ago} ago.</p>
  ) : (
    <p class="line lost" role="status"><strong>Connection lost</strong>, last update {ago} ago. Trying again.</p>
  );
}

type State = { info?: Info; who?: Whoami; error?: Error };

function App() {
  const route = useRoute();
  const [state, set] = useState<State>({});
  const [ended, end] = useState(false);
  const load = async () => {
    try {
      const info = await askInfo();
      set({ info, who: info.signed_in ? await call("Whoami", {}) : undefined });
    } catch (error) {
      set((s) => ({ ...s, error: error as Error }));
    }
  };
  useEffect(() => {
    void load();
    const out = () => {
      set((s) => {
        if (s.who) end(true);
        return { ...s, who: undefined };
      });
    };
    addEventListener(signedOut, out);
    return () => removeEventListener(signedOut, out);
  }, []);
  useEffect(() => {
    if (!state.error || state.info) return;
    const t = setTimeout(load, 3000);
    return () => clearTimeout(t);
  }, [state.error]);

  const { info, who } = state;
  const atLogin = route.path[0] === "login";
  const code = atLogin ? (route.query.get("code") ?? "") : "";
  const signedIn = async () => {
    end(false);
    await load();
    go("#/", true);
  };
  const signOut = async () => {
    try {
      await logout();
    } finally {
      end(false);
      set((s) => ({ ...s, who: undefined }));
      go("#/login");
    }
  };
  if (!info) {
    return (
      <Frame pages={[]} here="">
        {state.error ? <Failure error={state.error} again={load} /> : <Waiting />}
      </Frame>
    );
  }
  if (!who || atLogin) {
    return (
      <Frame pages={[]} here="login">
        <Notice info={info} />
        <Login info={info} who={who} code={code} ended={ended} done={signedIn} />
      </Frame>
    );
  }
  const operate = who.role !== "viewer" && !info.read_only;
  const viewer: Viewer = { who, info, operate, admin: who.role === "admin" && !info.read_only };
  const here = route.path[0] ?? "fleet";
  const mine = { clients: "fleet", leaves: "fleet", tokens: "fleet", start: "runs" }[here] ?? here;
  return (
    <ViewerContext.Provider value={viewer}>
      <Frame
        pages={viewer.admin ? [...pages, ["people", "People", "#/people"]] : pages}
        here={mine}
        page={route.path.join("/")}
        user={
          <>
            <a class="me" href={link(["people"])} title="Your sessions"><b>{who.name}</b><span>{who.role}{info.read_only ? ", read-only" : ""}</span></a>
            <button type="button" class="plain" onClick={signOut}>Sign out</button>
          </>
        }
        below={<p>This page shows no reading and no forecast of a client. <a href="#/leaves">What leaves a client</a></p>}
      >
        <Notice info={info} />
        <Connection />
        <Page {...route} />
      </Frame>
    </ViewerContext.Provider>
  );
}

// Only web addresses become links, because a notice must not run a script.
const Notice = ({ info }: { info: Info }) =>
  info.notice || info.links?.length ? (
    <p class="notice">
      {info.notice}
      {info.links?.filter((l) => /^https?:\/\//.test(l.url)).map((l) => <a key={l.url} href={l.url} rel="noreferrer">{l.title}</a>)}
    </p>
  ) : null;

render(<App />, document.getElementById("app")!);
