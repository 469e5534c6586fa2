// State that changes arrives as server-sent events, over one connection for all topics that the page shows. Every
// message contains the complete state of its topic, so only the newest message matters. The page reads the stream with
// fetch rather than EventSource, because it must distinguish a full server (503) from an unreachable one.
import { useEffect, useState } from "preact/hooks";
import { Refusal, signedOut } from "./api";

export type Line = { state: "connecting" | "live" | "lost" | "polling"; last: number };

type Topic = { poll: () => Promise<any>; tell: Set<(message: any) => void>; last?: any };

const silence = 45e3; // the server sends a comment every 15 s
const pollEvery = 10e3;
const hiddenAfter = 60e3; // a hidden tab gives up its connection, so that others can connect

const topics = new Map<string, Topic>();
const watchers = new Set<(l: Line) => void>();
let line: Line = { state: "connecting", last: 0 };
let cut: AbortController | undefined; // ends the current connection or pause
let running = false;
let stale = false; // the set of topics has changed

function set(state: Line["state"], heard = false): void {
  line = { state, last: heard ? Date.now() : line.last };
  for (const w of watchers) w(line);
}

function receive(name: string, message: any): void {
  const t = topics.get(name);
  if (!t) return;
  t.last = message;
  for (const tell of t.tell) tell(message);
}

const pause = (ms: number, signal: AbortSignal) =>
  new Promise<void>((done) => {
    const t = setTimeout(done, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(t);
      done();
    });
  });

async function poll(): Promise<void> {
  const results = await Promise.allSettled([...topics].map(async ([name, t]) => receive(name, await t.poll())));
  if (results.some((r) => r.status === "fulfilled")) set("polling", true);
}

// listen reads one connection until it ends.
async function listen(body: ReadableStream<Uint8Array>, abort: () => void, id: (s: string) => void): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "", event = "", data: string[] = [];
  let watch = setTimeout(abort, silence);
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(abort, silence);
      set("live", true);
      const lines = (rest + value).split(/\r\n|\n|\r/);
      rest = lines.pop()!;
      for (const l of lines) {
        if (l === "") {
          if (data.length > 0) receive(event, JSON.parse(data.join("\n")));
          event = "";
          data = [];
          continue;
        }
        const [, field, text] = /^([^:]*):? ?(.*)$/.exec(l)!;
        if (field === "event") event = text!;
        else if (field === "data") data.push(text!);
        else if (field === "id") id(text!);
      }
    }
  } finally {
    clearTimeout(watch);
  }
}

async function run(): Promise<void> {
  if (running) return;
  running = true;
  let lastID = "", failures = 0;
  while (topics.size > 0) {
    cut = new AbortController();
    const { signal } = cut;
    if (stale) lastID = ""; // otherwise, the server would omit topics that have not changed
    stale = false;
    let wait = 0;
    try {
      const r = await fetch(`api/events?topics=${[...topics.keys()].map(encodeURIComponent).join(",")}`, {
        headers: { Accept: "text/event-stream", ...(lastID && { "Last-Event-ID": lastID }) },
        credentials: "same-origin", cache: "no-store", signal,
      });
      if (r.status === 401) {
        dispatchEvent(new Event(signedOut));
        break;
      }
      if (r.status === 503 || r.status === 404) {
        await r.body?.cancel();
        await poll();
        wait = pollEvery;
      } else if (!r.ok || !r.body) throw new Refusal(String(r.status), "no events");
      else {
        failures = 0;
        set("live", true);
        await listen(r.body, () => cut?.abort(), (s) => (lastID = s));
      }
    } catch {
      // the code below reports the error
    }
    if (stale) continue;
    if (wait === 0) {
      set("lost");
      wait = Math.min(500 * 2 ** failures++, 8000) * (0.75 + Math.random() / 2);
    }
    if (!cut.signal.aborted) await pause(wait, signal);
    else await pause(wait, (cut = new AbortController()).signal);
    if (document.hidden && away) await new Promise<void>((back) => (resume = back));
  }
  running = false;
}

let away: ReturnType<typeof setTimeout> | undefined;
let resume: (() => void) | undefined;
document.addEventListener("visibilitychange", () => {
  clearTimeout(away);
  away = undefined;
  if (document.hidden) away = setTimeout(() => cut?.abort(), hiddenAfter);
  else {
    resume?.();
    resume = undefined;
  }
});

// useTopic returns the newest state of a topic, or undefined before the first message. poll fetches the state if events
// do not work.
export function useTopic<T>(name: string, poll: () => Promise<T>): T | undefined {
  const [value, tell] = useState<T | undefined>(() => topics.get(name)?.last);
  useEffect(() => {
    if (!name) return;
    let t = topics.get(name);
    if (!t) {
      topics.set(name, (t = { poll, tell: new Set() }));
      change();
    }
    if (t.last !== undefined) tell(t.last);
    t.tell.add(tell);
    return () => {
      t.tell.delete(tell);
      if (t.tell.size === 0) {
        topics.delete(name);
        change();
      }
    };
  }, [name]);
  return value;
}

// change reconnects with the current topics. It waits first, because a change of page removes some topics and adds
// others.
let pending = false;
function change(): void {
  if (pending) return;
  pending = true;
  setTimeout(() => {
    pending = false;
    stale = true;
    cut?.abort();
    void run();
  }, 20);
}

export function useLine(): Line {
  const [l, tell] = useState(line);
  useEffect(() => {
    watchers.add(tell);
    return () => void watchers.delete(tell);
  }, []);
  return l;
}
