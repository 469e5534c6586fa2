// The page of an agent, with the load and the forecasts of its clients.
import { render } from "preact";
import { useEffect, useId, useState } from "preact/hooks";
import "./app.css";
import { keepToken, needsToken, get, type Clients as List } from "./agentapi";
import { age, several } from "./format";
import { AuditPage } from "./pages/agentaudit";
import { ClientPage } from "./pages/agentclient";
import { Clients } from "./pages/agentclients";
import { useRoute } from "./router";
import { Failure, Frame, useNow, useTitle, Waiting } from "./ui";

const every = 5000;

function App() {
  const route = useRoute();
  const [list, set] = useState<List>();
  const [error, fail] = useState<Error>();
  const [heard, hear] = useState(0);
  const [locked, lock] = useState(false);
  const [turn, again] = useState(0);
  const now = useNow();

  useEffect(() => {
    const need = () => lock(true);
    addEventListener(needsToken, need);
    return () => removeEventListener(needsToken, need);
  }, []);
  useEffect(() => {
    if (locked) return;
    let gone = false;
    const ask = async () => {
      if (document.hidden) return;
      try {
        const l = await get<List>("clients");
        if (gone) return;
        set(l);
        hear(Date.now());
        fail(undefined);
      } catch (e) {
        if (!gone) fail(e as Error);
      }
    };
    void ask();
    const t = setInterval(ask, every);
    return () => {
      gone = true;
      clearInterval(t);
    };
  }, [locked, turn]);

  if (locked) {
    return (
      <Frame pages={[]} here="token">
        <Token retry={Boolean(list)} done={() => { lock(false); again((x) => x + 1); }} />
      </Frame>
    );
  }
  const name = route.path[0];
  const audited = route.path[1] === "audit" ? list?.clients.find((c) => c.client === name && !c.members)?.client : undefined;
  return (
    <Frame pages={[["clients", "Clients", "#/"]]} here={name ? "client" : "clients"} page={name ?? ""} user={list && <span class="me"><b>{list.site}</b><span>{several(list.clients.length, "client")}</span></span>}
      below={<p>Readings and forecasts on this page stay on this machine. The server never gets them.</p>}>
      {error && heard > 0 && <p class="line lost" role="status"><strong>Connection lost</strong>, last update {age(now - heard)} ago. Trying again.</p>}
      {!list ? (error ? <Failure error={error} /> : <Waiting />) : audited ? <AuditPage key={audited} name={audited} /> : name ? <ClientPage key={name} name={name} list={list} heard={heard} /> : <Clients list={list} />}
    </Frame>
  );
}

function Token({ done, retry }: { done: () => void; retry: boolean }) {
  useTitle("Token");
  const [text, type] = useState("");
  const [error, fail] = useState<Error>();
  const id = useId();
  const enter = async (e: Event) => {
    e.preventDefault();
    keepToken(text.trim());
    try {
      await get("clients");
      done();
    } catch (problem) {
      keepToken("");
      fail(problem as Error);
    }
  };
  return (
    <form class="login card" onSubmit={enter}>
      <h1>{retry ? "The token has changed" : "This agent asks for a token"}</h1>
      <p class="note">It is the content of the file that <code>http.token_file</code> in agent.yaml names. The page keeps it until this tab is closed.</p>
      <Failure error={error} />
      <p class="field"><label for={id}>Token</label><input id={id} type="password" required autocomplete="off" value={text} onInput={(e) => type(e.currentTarget.value)} /></p>
      <button type="submit" class="primary">Open</button>
    </form>
  );
}

render(<App />, document.getElementById("app")!);
