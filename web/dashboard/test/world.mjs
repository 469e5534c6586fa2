// This module starts the environment of the tests: a real server with its dashboard, simulated agents that keep the
// server busy, a real agent with readings, and a browser. Everything ends with the process.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, connect } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const here = dirname(fileURLToPath(import.meta.url));
export const binary = resolve(process.env.LOADSTAR_BIN ?? join(here, "../../../bin/loadstar"));
const lab = resolve(join(here, "../../../bin/loadstar-lab"));
for (const program of [binary, lab]) if (!existsSync(program)) throw new Error(`${program} is missing: run make build`);
export const shots = resolve(process.env.LOADSTAR_SHOTS ?? join(tmpdir(), "loadstar-shots"));
mkdirSync(shots, { recursive: true });
export const dir = mkdtempSync(join(tmpdir(), "loadstar-web-"));
export const patience = 1e3 * Number(process.env.PATIENCE ?? 60); // a busy machine is slow

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// until waits for a condition. If the wait is too long, its error names the condition.
export async function until(what, is, within = patience) {
  for (const end = Date.now() + within; ; await pause(100)) {
    let last;
    try {
      const value = await is();
      if (value) return value;
    } catch (e) {
      last = e;
    }
    if (Date.now() > end) throw new Error(`${what}: not within ${within / 1e3} s${last ? ` (${last})` : ""}`);
  }
}

const children = new Set();

// start runs loadstar until stop is called. out collects the output.
export const start = (...args) => startAs(binary, {}, ...args);

// startAs is like start, with another binary and additional environment variables.
export function startAs(program, env, ...args) {
  const child = spawn(program, args, { cwd: dir, stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  const p = { child, out: "", err: "", ended: new Promise((done) => child.on("exit", done)) };
  child.stdout.on("data", (b) => (p.out += b));
  child.stderr.on("data", (b) => (p.err = (p.err + b).slice(-4000)));
  children.add(child);
  child.on("exit", () => children.delete(child));
  p.stop = async (signal = "SIGTERM") => {
    child.kill(signal);
    await p.ended;
  };
  p.says = (pattern) => until(`${args.slice(0, 2).join(" ")} says ${pattern}`, () => {
    if (child.exitCode != null) throw new Error(`it ended: ${p.err}`);
    return pattern.exec(p.out);
  });
  return p;
}

// run runs loadstar and returns what it prints.
export function run(...args) {
  const r = spawnSync(binary, args, { cwd: dir, encoding: "utf8", timeout: patience });
  if (r.status !== 0) throw new Error(`loadstar ${args.join(" ")}: ${r.stderr || r.error}`);
  return r.stdout.trim();
}

// write writes a file into the folder in which commands run.
export const write = (name, text) => writeFileSync(join(dir, name), text);

export function freePort() {
  return new Promise((done) => {
    const s = createServer().listen(0, "127.0.0.1", () => {
      const { port } = s.address();
      s.close(() => done(port));
    });
  });
}

// --- The server

export const server = {
  async start() {
    this.listen ??= `127.0.0.1:${await freePort()}`;
    this.web ??= `127.0.0.1:${await freePort()}`;
    this.process = start("serve", "--dir", "server", "--listen", this.listen, "--watch", this.watch ?? "", "--web", this.web, ...(this.poll ?? ["--set", "agents.poll=100ms"]), "--log-level", "warn", ...(this.more ?? []));
    const [, address] = await this.process.says(/agents and operators: (\S+)/);
    this.flags = ["--server", address, "--operator", "server/operator"];
    this.url = `http://${this.web}/`;
  },
  operate(...args) {
    return run(...args, ...this.flags);
  },
  // link returns a login link for the operator, or for a user whom it adds.
  link(user, role) {
    if (user) {
      this.operate("user", "add", user, "--role", role);
      return this.operate("user", "login", user);
    }
    return JSON.parse(this.operate("user", "login", "--json")).link;
  },
};

export const plan = (name, rounds, cohort) => {
  const file = `${name}.yaml`;
  writeFileSync(join(dir, file), `name: ${name}\nalgorithm: fedavg\nmodel: {name: bose2023, targets: 24}\npartition: head\nrounds: ${rounds}\nevaluate: {every: 1}\nschedule: {cohort: ${cohort}}\n`);
  return file;
};

// agents keeps simulated agents busy.
export async function agents(count, clients, prefix) {
  const p = startAs(lab, {}, "bench", "agents", ...server.flags, "--agents", String(count), "--clients", String(clients), "--prefix", prefix);
  await p.says(/ready/);
  return p;
}

// --- A proxy whose connections the tests can cut

export async function proxy(to) {
  const [host, port] = to.split(":");
  const open = new Set();
  let broken = false;
  const s = createServer((a) => {
    if (broken) return a.destroy();
    const b = connect(Number(port), host);
    open.add(a);
    a.pipe(b).pipe(a);
    for (const [x, y] of [[a, b], [b, a]]) {
      x.on("error", () => {});
      x.on("close", () => {
        y.destroy();
        open.delete(a);
      });
    }
  });
  await new Promise((done) => s.listen(0, "127.0.0.1", done));
  return {
    url: `http://127.0.0.1:${s.address().port}/`,
    cut() {
      broken = true;
      for (const a of open) a.destroy();
    },
    // once cuts the open connections, and accepts new ones.
    once() {
      for (const a of open) a.destroy();
    },
    mend() {
      broken = false;
    },
    close() {
      this.cut();
      s.close();
    },
  };
}

// --- The browser

let browser;
export const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const seen = []; // all responses of servers to browsers: { url, text }
export const wrong = []; // events that must not happen, with the place at which they happened

export async function open(options = {}) {
  browser ??= await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
  const { allow = [], ...rest } = options;
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...rest });
  context.setDefaultTimeout(patience);
  await context.addInitScript(() => document.addEventListener("securitypolicyviolation", (e) => console.error(`policy: ${e.violatedDirective} ${e.blockedURI}`)));
  const tolerated = (text) => allow.some((a) => a.test(text));
  context.on("page", (page) => {
    const note = (what) => tolerated(what) || wrong.push(`${page.url()}: ${what}`);
    page.on("console", (m) => m.type() === "error" && note(`console: ${m.text()}`));
    page.on("pageerror", (e) => note(`error: ${e}`));
    page.on("request", (r) => {
      const { protocol, hostname } = new URL(r.url());
      if (!["data:", "blob:"].includes(protocol) && hostname !== "127.0.0.1") note(`request to ${r.url()}`);
    });
    page.on("response", async (r) => {
      if (/event-stream/.test(r.headers()["content-type"] ?? "")) return;
      try {
        seen.push({ url: r.url(), text: await r.text() });
      } catch {
        // the page has been left
      }
    });
  });
  return context;
}

// signIn opens the dashboard in a browser context with a login link.
export async function signIn(context, link, base) {
  const page = await context.newPage();
  await page.goto(base ? link.replace(/^http:\/\/[^/]+\//, base) : link);
  await page.waitForSelector("nav");
  return page;
}

// check runs axe on a page, and checks the rules for all pages: nothing scrolls sideways, and buttons are large enough.
export async function check(page, name) {
  const problems = [];
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) problems.push(`scrolls sideways by ${wide} px`);
  const small = await page.evaluate(() =>
    [...document.querySelectorAll("button, select, input, summary, nav a, .button, .brand")].filter((e) => e.getClientRects().length > 0 && e.getBoundingClientRect().height < 40).map((e) => e.outerHTML.slice(0, 80)));
  problems.push(...small.map((s) => `lower than 40 px: ${s}`));
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const found = await page.evaluate(async () => (await window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] })).violations);
  for (const v of found) problems.push(`axe ${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 140)} (${n.any[0]?.message ?? v.help})`).join("; ")}`);
  if (problems.length > 0) throw new Error(`${name}:\n  ${problems.join("\n  ")}`);
}

export const shot = (page, name) => page.screenshot({ path: join(shots, `${name}.png`), fullPage: true });

export async function end() {
  await browser?.close();
  const all = [...children];
  for (const c of all) c.kill("SIGTERM");
  await Promise.all(all.map((c) => new Promise((done) => (c.exitCode != null || c.signalCode != null ? done() : c.on("exit", done)))));
  rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
}
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, async () => {
    await end();
    process.exit(1);
  });
}
