// A real agent with generated readings, which include a gap and a marker. The agent has joined the server and trains
// for it.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { dir, freePort, patience, run, server, start, until } from "./world.mjs";

const day = 86400e3;
const marker = 1313.1313; // kW; no generated load is close to this value

export const agent = {
  token: "an-agent-token-for-tests-only-0123456789",
  // markers returns texts that represent readings and forecasts of the client.
  async markers() {
    const get = async (path) => (await fetch(`${this.url}v1/${path}`, { headers: { Authorization: `Bearer ${this.token}` } })).json();
    const forecast = await get(`forecasts/${this.client}`), readings = await get(`readings/${this.client}`);
    const long = (x) => typeof x === "number" && String(x).length >= 6;
    return [String(marker), ...[...forecast.values.P50, ...readings.values.load].filter(long).map(String)];
  },
  async stop() {
    await this.process.stop();
  },
  async restart(locked) {
    await this.stop();
    await this.begin(locked);
  },
  async begin(locked) {
    this.port ??= await freePort();
    this.url = `http://127.0.0.1:${this.port}/`;
    writeFileSync(join(dir, "token"), this.token, { mode: 0o600 });
    writeFileSync(join(dir, "agent.yaml"), [
      "dir: agent", "site: {name: basement, zone: Europe/Berlin, country: DE, interval: 1h}", "history: site.prepared", "server: required",
      "policy: {least_client_examples: 0, whole_blocks: false, least_cohort: 1, least_merge: 1, least_fleet: 1}",
      `http: {listen: "127.0.0.1:${this.port}"${locked ? ", token_file: token" : ""}}`, "",
    ].join("\n"));
    this.process = start("agent", "run", "--config", "agent.yaml", "--log-level", "warn");
    await until("the agent answers", async () => {
      if (this.process.child.exitCode != null) throw new Error(this.process.err);
      return (await fetch(`${this.url}healthz`)).ok;
    });
  },
};

// startAgent generates readings, joins the server and waits for the first forecast.
export async function startAgent() {
  const begin = new Date(Date.now() - 59 * day).toISOString().slice(0, 10);
  run("data", "generate", "--meters", "4", "--days", "60", "--start", begin, "--zone", "Europe/Berlin", "-o", "site");
  run("data", "prepare", "site", "-o", "site.prepared");
  const token = server.operate("token", "create").split("\n").find((l) => l.startsWith("ls1-"));
  run("agent", "join", server.flags[1], token, "--dir", "agent");
  await agent.begin(false);
  const list = async () => (await fetch(`${agent.url}v1/clients`)).json();
  agent.client = (await until("clients", async () => (await list()).clients[0], patience)).client;
  // Add a marker to yesterday's readings, and a gap. A row with a higher revision and no value removes a reading.
  const hour = Math.floor(Date.now() / 3600e3) * 3600e3;
  const rows = [];
  for (let i = 30; i < 36; i++) rows.push({ unique_id: agent.client, ds: new Date(hour - i * 3600e3).toISOString(), y: null, quality: "MISSING", revision: 1 });
  rows.push({ unique_id: agent.client, ds: new Date(hour - 40 * 3600e3).toISOString(), y: marker, revision: 1 });
  const r = await fetch(`${agent.url}v1/readings`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(rows) });
  if (!r.ok) throw new Error(`readings: ${r.status} ${await r.text()}`);
  await fetch(`${agent.url}v1/forecasts/${agent.client}`, { method: "POST" });
  await until("a forecast", async () => (await fetch(`${agent.url}v1/forecasts/${agent.client}`)).ok);
}
