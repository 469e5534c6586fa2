// The calls of an agent's API. The agent's /openapi.json describes the responses.
export type AgentClient = {
  client: string; members?: string[]; newest_reading: string | null; receiving: { messages: number; since: string; complete: string } | null; days: number | null; cutoff: string | null; release: string | null;
  source: string | null; reason: string | null; quality: string | null; drift: boolean; findings: string[]; pinned: boolean;
};
export type Clients = { site: string; step: string; timezone: string; generated: boolean; clients: AgentClient[] };
type Columns = { time: string[]; [name: string]: any[] };
export type Series = { client: string; step: string; timezone: string; generated: boolean; values: Columns };
export type Forecast = Series & {
  cutoff: string; issued: string; quality: string; scores: Record<string, number | null>;
  energy: { day: string; mean: number | null; P10: number | null; P90: number | null }[];
  peak: { time: string | null; P10: number | null; P50: number | null; P90: number | null };
  model: { release: string | null; run: string | null; version: number; head: string | null; weight: number | null; stale: boolean };
};
export type Score = { days: number; leads: { first: string; last: string } | null; steps: number; mae_kw: number | null; relative_mae: number | null; coverage_P10_P90?: number | null; fallback_share: number | null; energy: { days: number; mae_kwh: number; relative_mae: number; bias: number } | null };
export type Quality = { from: string | null; to: string | null; missing_share: number | null; findings: { code: string; message: string; advice: string }[] };

type Guess = { kw: number[]; correlation: number };
export type Attack = { name: string; updates: number; meaning: string; labels: string[]; truth_kw: number[]; guess: Guess; guess_with_known_draws: Guess; guess_without_updates: Guess };
export type Audit = {
  state: "none" | "running" | "done" | "failed"; share_done: number; error: string;
  report: { run: string; round: number; pending: boolean; attacks: Attack[] } | null;
};

export class Problem extends Error {
  constructor(readonly status: number, readonly type: string, detail: string) {
    super(detail);
  }
}

export const needsToken = "needs-token"; // an event of the window

const key = "loadstar-token";
let memory = ""; // used if the browser's storage is disabled

export function token(): string {
  try {
    return sessionStorage.getItem(key) ?? memory;
  } catch {
    return memory;
  }
}

export function keepToken(t: string): void {
  memory = t;
  try {
    if (t) sessionStorage.setItem(key, t);
    else sessionStorage.removeItem(key);
  } catch {
    // storage is disabled, so the token lasts until the page is closed
  }
}

export const get = <T>(path: string, query: Record<string, string> = {}): Promise<T> => call<T>("GET", `${path}?${new URLSearchParams(query)}`);
export const post = <T>(path: string): Promise<T> => call<T>("POST", path);

async function call<T>(method: string, path: string): Promise<T> {
  const t = token();
  let r: Response;
  try {
    r = await fetch(`v1/${path}`, { method, headers: t ? { Authorization: `Bearer ${t}` } : {}, cache: "no-cache" });
  } catch {
    throw new Problem(0, "unreachable", "The agent does not answer. The page tries again by itself.");
  }
  const answer = await r.json().catch(() => ({}));
  if (r.ok) return answer;
  if (r.status === 401) dispatchEvent(new Event(needsToken));
  throw new Problem(r.status, answer.type ?? "", answer.detail ?? `The agent answered with status ${r.status}.`);
}

const longest = 9000; // steps in one response; the agent's limit is 10,000

// between fetches a series in as many parts as the agent's limit requires.
export async function between(path: string, from: number, to: number, step: number, query: Record<string, string> = {}): Promise<Series> {
  const parts: Promise<Series>[] = [];
  for (let at = from; at < to; at += longest * step) {
    parts.push(get<Series>(path, { ...query, from: iso(at), to: iso(Math.min(at + longest * step, to)) }));
  }
  const all = await Promise.all(parts);
  const first = all[0]!;
  for (const p of all.slice(1)) for (const name of Object.keys(first.values)) first.values[name] = [...first.values[name]!, ...(p.values[name] ?? [])];
  return first;
}

const iso = (s: number) => new Date(1000 * s).toISOString().replace(".000", "");
