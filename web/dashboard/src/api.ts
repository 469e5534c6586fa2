// The calls of a server: the operators' API in JSON, and a few calls for sessions.
export type Int = string | number; // 64-bit integers are strings in proto3 JSON

export type Whoami = { name?: string; role?: "viewer" | "operator" | "admin"; via?: string; expires?: Int };
export type ReportDay = { day?: Int; clients?: Int; total?: Int; relativeMae?: number; coverage?: number; fallback?: number; drifting?: Int; wanting?: Int };
export type Run = {
  id?: string; name?: string; algorithm?: string; state?: string; reason?: string; created?: Int; started?: Int; finished?: Int; clients?: Int;
  round?: Int; rounds?: Int; version?: Int; weights?: string; generated?: boolean; partition?: string; sharedWeights?: Int; personalWeights?: Int;
  leftOut?: string; wanted?: Int; warnings?: string[];
};
export type Round = { round?: Int; version?: Int; state?: string; opened?: Int; closed?: Int; asked?: Int; counted?: Int; late?: Int; lost?: Int; loss?: number; bytes?: Int; evaluated?: Int; relativeMae?: number };
export type Waits = { round?: Int; clients?: Int; silent?: Int; agents?: { id?: string; name?: string; clients?: Int; seen?: Int; silent?: boolean }[]; givesUp?: Int; merges?: Int; asked?: Int; needs?: Int; replaces?: boolean; usualMs?: Int; text?: string };
export type Fleet = { version?: string; agents?: Int; clients?: Int; quiet?: Int; silent?: Int; revoked?: Int; expiring?: Int; generated?: boolean; hub?: string; serving?: ReportDay; run?: Run };
export type Agent = { id?: string; name?: string; joined?: Int; seen?: Int; expires?: Int; revoked?: boolean; quiet?: boolean; silent?: boolean; refused?: Int; refusedNames?: string[]; clients?: Int; version?: string; skewMs?: Int; generated?: boolean; token?: string; protocol?: Int; copied?: Int; findings?: Int };
export type Client = { name?: string; agent?: string; agentName?: string; announced?: Int; seen?: Int; revoked?: boolean; release?: string; reported?: Int; inputs?: string[]; stepSeconds?: Int; also?: string[] };
export type Turn = { run?: string; round?: Int; client?: string; agent?: string; state?: string; version?: Int; examples?: Int; steps?: Int; counted?: Int; norm?: number; reason?: string; clipped?: boolean };
export type NewClients = { heldOut?: Int; answered?: Int; scored?: Int; relativeMae?: number };
export type GetRun = { run?: Run; plan?: string; rounds?: Round[]; newClients?: NewClients; waiting?: Waits };
export type Release = { release?: { id?: string; name?: string; number?: Int; run?: string; version?: Int; role?: string }; parent?: string; actor?: string; created?: Int; withdrawn?: Int; offered?: boolean };
export type Finding = { code?: string; day?: Int; clients?: Int; title?: string; advice?: string };
export type PlanFile = { name?: string; about?: string; plan?: string };
export type Explained = { text?: string; plan?: string; name?: string; rounds?: Int; wanted?: Int; clients?: Int; warnings?: string[] };
export type Version = { version?: Int; created?: Int; from?: Int; rolledBack?: boolean };
export type Token = { id?: string; note?: string; created?: Int; actor?: string; uses?: Int; joined?: Int; used?: Int; expires?: Int; revoked?: Int; clients?: Int; pattern?: string };
export type Event = { at?: Int; actor?: string; action?: string; subject?: string; detail?: string; id?: string };
export type User = { name?: string; role?: string; source?: string; created?: Int };
export type Session = { id?: string; user?: string; created?: Int; expires?: Int; via?: string };
export type Certificate = { serial?: string; user?: string; issued?: Int; expires?: Int; revoked?: Int };

type Calls = {
  Whoami: [{}, Whoami];
  GetFleet: [{}, Fleet];
  ListAgents: [{ after?: string; limit?: number; name?: string; findings?: boolean }, { agents?: Agent[] }];
  ListClients: [{ after?: string; limit?: number; name?: string; agent?: string }, { clients?: Client[]; agents?: Int; total?: Int; next?: string }];
  GetClient: [{ client: string }, { client?: Client; agent?: Agent; turns?: Turn[] }];
  ListTurns: [{ run: string; round: number; after?: string; limit?: number }, { turns?: Turn[] }];
  ListFindings: [{ days: number }, { findings?: Finding[]; day?: Int; reported?: Int }];
  Revoke: [{ client?: string; agent?: string }, {}];
  ListRuns: [{ limit: number }, { runs?: Run[] }];
  GetRun: [{ run: string; rounds: number }, GetRun];
  ListPlans: [{}, { plans?: PlanFile[] }];
  ExplainPlan: [{ plan: string; rounds: number }, Explained];
  StartRun: [{ plan: string; clients: number }, { run?: string; warnings?: string[] }];
  StopRun: [{ run: string }, {}];
  ListVersions: [{ run: string }, { versions?: Version[] }];
  RollBackRun: [{ run: string; version: number }, { version?: Int }];
  ListAudit: [{ limit: number; before?: string; actor?: string; action?: string }, { events?: Event[] }];
  CreateRelease: [{ run: string; version?: number; name?: string }, { release?: Release }];
  ListReleases: [{}, { releases?: Release[] }];
  WithdrawRelease: [{ release: string }, {}];
  ListReports: [{ release?: string; days: number }, { days?: ReportDay[] }];
  CreateToken: [{ note: string; uses: number; ttlSeconds: number; clients: number; pattern: string }, { token?: string; expires?: Int; id?: string; server?: string }];
  ListTokens: [{ limit: number; after?: string }, { tokens?: Token[] }];
  RevokeToken: [{ id: string }, { token?: Token }];
  ListUsers: [{}, { users?: User[] }];
  PutUser: [{ name: string; role: string }, { user?: User }];
  RemoveUser: [{ name: string }, {}];
  CreateLogin: [{ user: string; ttlSeconds: number }, { code?: string; expires?: Int; page?: string }];
  ListSessions: [{}, { sessions?: Session[] }];
  EndSession: [{ id: string }, {}];
  ListCertificates: [{}, { certificates?: Certificate[] }];
  RevokeCertificate: [{ serial: string }, {}];
};

export type Info = { signed_in: boolean; methods?: string[]; notice?: string; links?: { title: string; url: string }[]; read_only?: boolean };

// Refusal is an error response, with the server's message.
export class Refusal extends Error {
  constructor(readonly code: string, message: string) {
    super(message);
  }
}

export const signedOut = "signed-out"; // an event of the window

async function post(path: string, body: unknown): Promise<Response> {
  try {
    return await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), credentials: "same-origin" });
  } catch {
    throw new Refusal("unreachable", "The server does not answer. The page tries again by itself.");
  }
}

async function read<T>(r: Response): Promise<T> {
  const text = await r.text();
  let answer: any;
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    answer = { message: text.trim() };
  }
  if (r.ok) return answer as T;
  if (r.status === 401) dispatchEvent(new Event(signedOut));
  throw new Refusal(answer.code ?? String(r.status), answer.message || `The server answered with status ${r.status}.`);
}

export const call = async <M extends keyof Calls>(method: M, request: Calls[M][0]): Promise<Calls[M][1]> =>
  read(await post(`api/loadstar.v1.OperatorService/${method}`, request));

export async function info(): Promise<Info> {
  let r: Response;
  try {
    r = await fetch("api/info", { credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Refusal("unreachable", "The server does not answer. The page tries again by itself.");
  }
  return read(r);
}

export const login = async (code: string): Promise<void> => read(await post("api/login", { code }));
export const logout = async (): Promise<void> => read(await post("api/logout", {}));
