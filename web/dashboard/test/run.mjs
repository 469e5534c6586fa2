// The tests of both pages in Debian's Chromium, with a real server and a real agent. `make web-test` runs them. SHORT=1
// omits two of the four combinations of theme and width. LOADSTAR_SHOTS names the folder for screenshots.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { agent, startAgent } from "./agent.mjs";
import * as world from "./world.mjs";

const { open, check, pause, plan, server, shot, signIn, until } = world;
const short = Boolean(process.env.SHORT);
const looks = [["light", 1280], ["dark", 390], ...(short ? [] : [["dark", 1280], ["light", 390]])];
const viewport = (width) => ({ width, height: width < 500 ? 844 : 900 });

let run; // the run that the simulated agents work for
let state; // cookies of the operator's session

const round = (page) => page.locator(".bar-wide b").textContent().then((t) => Number(t.replace(/\D/g, "")));
const advances = async (page, what) => {
  const from = await round(page);
  await until(`${what}: a round after ${from}`, async () => (await round(page)) > from);
};

before(async () => {
  await server.start();
  const ready = startAgent();
  server.small = await world.agents(60, 1, "meter");
  run = server.operate("run", "start", plan("day-ahead", 100000, 42));
  await ready;
});
after(world.end);

test("signs in by a link, once", async () => {
  const context = await open({ allow: [/status of 401|status of 403/] });
  const link = server.link();
  const page = await signIn(context, link);
  assert.match(page.url(), /#\/$/, "the code is removed from the address");
  await page.waitForSelector("h1:has-text('Fleet')");
  state = await context.storageState();
  const [cookie] = state.cookies;
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, "Strict");

  const other = await open({ allow: [/status of 4\d\d/] });
  const again = await other.newPage();
  await again.goto(link);
  await again.waitForSelector("[role=alert]");
  assert.match(await again.locator("[role=alert]").textContent(), /link|code/, "a used link is refused in the server's words");
  await again.goto(server.url + "#/runs");
  await again.waitForSelector("h1:has-text('Sign in')");
  await check(again, "login");
  await shot(again, "server-login-light-1280");
  await other.close();
  await context.close();
});

test("before an agent has joined, the pages say what to do", async () => {
  // The main server has agents, so this test starts another server.
  const port = await world.freePort();
  const fresh = world.start("serve", "--dir", "fresh", "--listen", "127.0.0.1:0", "--watch", "", "--web", `127.0.0.1:${port}`, "--log-level", "warn");
  const [, address] = await fresh.says(/agents and operators: (\S+)/);
  const { link } = JSON.parse(world.run("user", "login", "--json", "--server", address, "--operator", "fresh/operator"));
  const context = await open();
  const page = await signIn(context, link);
  for (const [path, text] of [["", "loadstar token create"], ["runs", "loadstar run start"], ["models", "loadstar release create"], ["data", "loadstar data check"]]) {
    await page.goto(`http://127.0.0.1:${port}/#/${path}`);
    await page.waitForSelector(`main code:has-text('${text}')`);
    await check(page, `empty ${path}`);
    await shot(page, `server-empty-${path || "fleet"}-light-1280`);
  }
  await context.close();
  await fresh.stop();
});

test("every page, two themes, two widths", async (t) => {
  server.operate("release", "create", run, "--name", "day");
  const pages = {
    fleet: ["#/", "text=meter-000000"], runs: ["#/runs", "text=day-ahead"], run: [`#/runs/${run}`, ".cells .cell"], client: ["#/clients/meter-000005", "text=Newest turns"],
    models: ["#/models", "text=day@1"], data: ["#/data", "text=gaps"], affected: ["#/data?code=flat", "text=meter-000005"], audit: ["#/audit", "text=create token"],
    start: ["#/start", "text=What happens next"], tokens: ["#/tokens", "text=The server stores no token"],
    people: ["#/people", "text=Certificates of operators"], leaves: ["#/leaves", "text=What stays"], nowhere: ["#/nowhere", "text=No such page"], unknown: ["#/runs/nothing", "[role=alert]"],
  };
  for (const [theme, width] of looks) {
    await t.test(`${theme} at ${width} px`, async () => {
      const context = await open({ storageState: state, colorScheme: theme, viewport: viewport(width), allow: [/status of 404/] });
      const page = await context.newPage();
      await page.goto(server.url);
      for (const [name, [path, wanted]] of Object.entries(pages)) {
        await page.goto(server.url + path);
        await page.waitForSelector(wanted);
        if (name === "run") await page.waitForSelector(".plot canvas");
        await pause(300);
        await shot(page, `server-${name}-${theme}-${width}`);
        await check(page, `${name}, ${theme}, ${width}`);
        assert.ok((await page.locator(".generated").count()) <= 1, `${name} says GENERATED more than once`);
      }
      assert.equal(await page.locator(".generated").count(), 0);
      await context.close();
    });
  }
});

test("the theme is remembered", async () => {
  const context = await open({ storageState: state, colorScheme: "light" });
  const page = await context.newPage();
  await page.goto(server.url);
  const dark = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.waitForSelector("nav");
  const before = await dark();
  const button = page.locator("button[aria-label^='Theme']");
  while (!/Theme: dark/.test(await button.getAttribute("aria-label"))) await button.click();
  assert.notEqual(await dark(), before);
  await page.reload();
  await page.waitForSelector("nav");
  assert.notEqual(await dark(), before, "after a reload");
  await context.close();
});

test("keyboard walk", async () => {
  const context = await open({ storageState: state });
  const page = await context.newPage();
  await page.goto(server.url);
  await page.waitForSelector("text=meter-000000");
  const focused = () => page.evaluate(() => ({ text: (document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent).trim(), id: document.activeElement.id, outline: getComputedStyle(document.activeElement).outlineStyle }));
  const tab = async (pattern, most = 60) => {
    for (let i = 0; i < most; i++) {
      await page.keyboard.press("Tab");
      const f = await focused();
      assert.notEqual(f.outline, "none", `focus is not visible at ${f.text}`);
      if (pattern.test(f.text)) return;
    }
    assert.fail(`Tab does not reach ${pattern}`);
  };
  await page.keyboard.press("Tab");
  assert.match((await focused()).text, /Skip to content/);
  await page.keyboard.press("Enter");
  assert.equal((await focused()).id, "main");
  await page.reload();
  await page.waitForSelector("text=meter-000000");
  await tab(/^Runs$/);
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('Runs')");
  assert.equal((await focused()).id, "main", "a new page takes the focus");
  await page.waitForSelector("main a:has-text('day-ahead')");
  await tab(/^day-ahead/);
  await page.keyboard.press("Enter");
  await page.waitForSelector(".plot canvas");
  await tab(/^Stop the run/);
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  await check(page, "dialog");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("dialog[open]").count(), 0);
  assert.match((await focused()).text, /^Stop the run/, "the focus returns to the button");
  await tab(/^Mean error of the clients/);
  await page.keyboard.press("Home");
  await until("the arrow keys read the chart", async () => /round.*relative MAE/.test(await page.locator(".readout").first().textContent()));
  await tab(/^Show as table/);
  await page.keyboard.press("Enter");
  await page.waitForSelector("[aria-label*='as a table'] tbody tr");
  await check(page, "chart as a table");
  await context.close();
});

test("events move the page; cut, they resume", async () => {
  const proxy = await world.proxy(server.web);
  const context = await open({ allow: [/ERR_|Failed to load|Failed to fetch/] });
  const page = await signIn(context, server.link(), proxy.url);
  await page.goto(`${proxy.url}#/runs/${run}`);
  await page.waitForSelector(".bar-wide");
  let loads = 0;
  page.on("request", (r) => r.isNavigationRequest() && loads++);
  await advances(page, "live");
  proxy.once();
  await advances(page, "after one cut");
  proxy.cut();
  await page.waitForSelector("text=Connection lost");
  assert.match(await page.locator(".line.lost").textContent(), /last update \d+ s ago/);
  await shot(page, "server-lost-light-1280");
  await check(page, "connection lost");
  proxy.mend();
  await page.waitForSelector("text=Connection lost", { state: "detached" });
  await advances(page, "after the connection is back");
  assert.equal(loads, 0, "the page was not loaded again");
  const rows = await page.locator("[aria-label='Table: Rounds'] tbody th").allTextContents();
  const rounds = rows.map((r) => Number(r.replace(/\D/g, "")));
  assert.deepEqual(rounds, rounds.map((_, i) => rounds[0] - i), "no round is missing");
  await context.close();
  proxy.close();
});

test("too many viewers: the page asks by itself", async () => {
  const context = await open({ storageState: state, allow: [/503/] });
  const cookie = `${state.cookies[0].name}=${state.cookies[0].value}`;
  const stop = new AbortController();
  const ask = () => fetch(`${server.url}api/events?topics=fleet`, { headers: { Cookie: cookie }, signal: stop.signal });
  const held = []; // open streams; a stream stays open while its body is unread
  let full = 0;
  for (let i = 0; i < 300 && full === 0; i++) {
    const r = await ask();
    if (r.status === 503) full = i;
    else held.push(r);
  }
  assert.ok(full > 0, "the server refuses nobody");
  const page = await context.newPage();
  await page.goto(`${server.url}#/runs/${run}`);
  await page.waitForSelector("text=The page asks every 10 s");
  await advances(page, "polling");
  await check(page, "polling");
  stop.abort();
  await page.waitForSelector("text=The page asks every 10 s", { state: "detached" });
  await advances(page, "events again");
  await context.close();
});

test("the server is killed and comes back", async () => {
  const context = await open({ storageState: state, allow: [/ERR_|Failed to load|Failed to fetch/] });
  const page = await context.newPage();
  await page.goto(`${server.url}#/runs/${run}`);
  await page.waitForSelector(".bar-wide");
  await server.process.stop("SIGKILL");
  await page.waitForSelector("text=Connection lost");
  await server.start();
  await page.waitForSelector("text=Connection lost", { state: "detached" });
  await advances(page, "after the restart");
  await context.close();
});

test("a viewer looks and does not touch", async () => {
  const context = await open({ allow: [/status of 403/] });
  const page = await signIn(context, server.link("vera", "viewer"));
  assert.equal(await page.locator("nav a:has-text('People')").count(), 0);
  await page.goto(`${server.url}#/runs/${run}`);
  await page.waitForSelector(".bar-wide");
  assert.equal(await page.locator("button:has-text('Stop the run')").count(), 0);
  // No page has a button that changes anything, and the server refuses the calls of such buttons.
  for (const path of ["", "runs", `runs/${run}`, "models", "start", "tokens"]) {
    await page.goto(`${server.url}#/${path}`);
    await page.waitForSelector("h1");
    await pause(300);
    if (await page.locator("text=Show the versions").count()) await page.click("text=Show the versions");
    assert.deepEqual(await page.locator("main").locator("a, button").filter({ hasText: /^(Start a run|Start the run|Stop|Release|Roll back|Withdraw|Join tokens|Create a token|Revoke|Explain)/ }).allTextContents(), [], path);
  }
  const plan = "algorithm: fedavg\n";
  for (const [method, body] of [["StopRun", { run }], ["StartRun", { plan }], ["ExplainPlan", { plan }], ["ListPlans", {}], ["RollBackRun", { run, version: 1 }], ["CreateRelease", { run }], ["WithdrawRelease", { release: "day@1" }],
    ["CreateToken", { uses: 1, ttlSeconds: 3600 }], ["ListTokens", {}], ["RevokeToken", { id: "x" }]]) {
    const refused = await page.evaluate(async ([method, body]) => (await fetch(`api/loadstar.v1.OperatorService/${method}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).status, [method, body]);
    assert.equal(refused, 403, method);
  }
  await page.goto(`${server.url}#/people`);
  await page.waitForSelector("h1:has-text('Your sessions')");
  await check(page, "viewer's sessions");
  // After signing out, the session is over, even for events.
  await page.click("text=Sign out");
  await page.waitForSelector("h1:has-text('Sign in')");
  await context.close();
});

test("an operator starts a run, goes back to a version, releases it and withdraws it", async () => {
  server.operate("user", "add", "otto", "--role", "operator");
  const context = await open({ allow: [/status of 400/] });
  const page = await signIn(context, server.operate("user", "login", "otto"));
  const audited = (action) => server.operate("audit", "list", "--limit", "200").split("\n").filter((l) => l.includes("user otto via web") && l.includes(action)).length;
  await page.goto(`${server.url}#/runs`);
  await page.click("main a:has-text('Start a run')");
  await page.waitForSelector("h1:has-text('Start a run')");
  assert.match(await page.locator("select option").first().textContent(), /^day-ahead$/, "the plan that beginners need is first");
  assert.equal(await page.locator("button:has-text('Start the run')").count(), 0, "nothing starts that was not explained");
  await check(page, "start");
  // The page refuses a plan that no fleet can train, with the server's message.
  await page.selectOption("select", "own");
  await page.fill("textarea", "algorithm: pooled\n");
  await page.click("text=Explain");
  await page.waitForSelector("[role=alert] >> text=/simulate/");
  await page.fill("textarea", "name: by-hand\nalgorithm: fedavg\nmodel: {name: bose2023, targets: 24}\npartition: head\nrounds: 9\nschedule: {cohort: 20}\n");
  await page.getByLabel("Rounds").fill("100000");
  await page.getByLabel("Wait for clients").fill("50");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#explained");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-labelledby")), "explained", "the explanation takes the focus");
  assert.match(await page.locator("main p[role=status]").textContent(), /explained by-hand. It begins now: it needs 50 clients, and the fleet has \d+\./);
  assert.match(await page.locator("pre").last().textContent(), /Communication\n[^]*Cost/);
  await check(page, "explained");
  await shot(page, "server-start-light-1280");
  await page.getByLabel("Wait for clients").fill("60");
  assert.equal(await page.locator("#explained").count(), 0, "a change makes the explanation stale");
  await page.getByLabel("Wait for clients").fill("50");
  await page.click("text=Explain");
  await page.click("button:has-text('Start the run')");
  await page.waitForSelector("dialog[open]");
  assert.match(await page.locator("dialog[open]").textContent(), /100,000 rounds.*send updates of weights/);
  await check(page, "start, dialog");
  await shot(page, "server-start-dialog-light-1280");
  assert.equal(audited("start run"), 0, "nothing has started yet");
  await page.click("dialog[open] .primary");
  await page.waitForSelector("h1:has-text('by-hand')");
  assert.equal(audited("start run"), 1);
  await until("three rounds", async () => (await round(page)) > 3);
  await page.click("text=Show the versions");
  const rows = page.locator("[aria-label='Table: Versions'] tbody tr");
  await rows.first().waitFor();
  await check(page, "versions");
  await shot(page, "server-versions-light-1280");
  const newest = await rows.first().locator("th").textContent();
  await page.click("text=Refresh"); // the server keeps ten versions
  await until("new versions", async () => (await rows.first().locator("th").textContent()) !== newest);
  // Rounds are short, so the server may delete the version before the click.
  for (let attempt = 1; ; attempt++) {
    const to = await rows.nth(1).locator("th").textContent();
    await rows.nth(1).getByRole("button", { name: "Roll back" }).click();
    assert.match(await page.locator("dialog[open]").textContent(), /open round is abandoned/);
    await page.click("dialog[open] .danger");
    try {
      await page.waitForSelector(`[role=status] >> text=now has the weights of version ${to}.`, { timeout: 8000 });
      break;
    } catch (e) {
      if (attempt === 5) throw e;
      await page.keyboard.press("Escape");
      await page.click("text=Refresh");
    }
  }
  assert.equal(audited("roll back run"), 1);
  await page.click("button:has-text('Stop the run')");
  await page.click("dialog[open] .danger");
  await page.waitForSelector("button:has-text('Release the weights')");
  await page.click("text=Refresh");
  await rows.first().getByRole("button", { name: "Release" }).click();
  await page.locator("dialog[open]").getByLabel("Name of the release").fill("by-hand");
  await check(page, "release, dialog");
  await page.click("dialog[open] .primary");
  await page.waitForSelector("h1:has-text('Models')");
  const row = page.locator("[aria-label='Table: Releases'] tr", { hasText: "by-hand@1" });
  await row.getByRole("button", { name: "Withdraw" }).click();
  await page.click("dialog[open] .danger");
  await row.locator("text=withdrawn").waitFor();
  assert.deepEqual([audited("release"), audited("withdraw")].map((n) => n > 0), [true, true]);
  await context.close();
});

test("an operator creates a join token with limits, an agent joins with its line, and it is revoked", async () => {
  const context = await open();
  const page = await signIn(context, server.operate("user", "login", "otto"));
  await page.click("main a:has-text('Join tokens')");
  await page.waitForSelector("h1:has-text('Join tokens')");
  await page.getByLabel("Note").fill("feeder 12");
  await page.getByLabel("Agents that may join").fill("0");
  await page.click("button:has-text('Create a token')");
  assert.equal(await page.locator("dialog[open]").count(), 0, "the form refuses what the server would");
  await page.getByLabel("Agents that may join").fill("2");
  await page.getByLabel("Clients of each agent").fill("3");
  await page.getByLabel("Names of clients").fill("feeder-12-*");
  await check(page, "tokens");
  await page.click("button:has-text('Create a token')");
  assert.match(await page.locator("dialog[open]").textContent(), /2 agents with up to 3 clients each named feeder-12-\*/);
  await check(page, "token, dialog");
  await page.click("dialog[open] .primary");
  const [token, line] = await Promise.all([0, 1].map((i) => page.locator(".invitation pre").nth(i).textContent()));
  assert.match(await page.evaluate(() => document.activeElement.className), /invitation/, "the token takes the focus");
  await check(page, "token");
  await shot(page, "server-token-light-1280");
  // The displayed command works unchanged in a separate folder.
  world.write("joined.token", token);
  const [, address] = /^loadstar agent join (\S+) --token-file FILE$/.exec(line);
  world.run("agent", "join", address, "--token-file", "joined.token", "--dir", "joined");
  const row = page.locator("[aria-label='Table: Join tokens'] tr", { hasText: "feeder 12" });
  const cells = () => row.locator("td").allTextContents().then((t) => t.slice(2, 6).join());
  await until("the list shows that an agent has joined", async () => (await cells()) === "1,1,3,feeder-12-*");
  await page.reload();
  await row.waitFor();
  assert.equal(await page.locator(".invitation").count(), 0, "a token is shown once");
  await row.getByRole("button", { name: "Revoke" }).click();
  await page.click("dialog[open] .danger");
  await row.locator("text=revoked").waitFor();
  assert.equal(server.operate("audit", "list", "--limit", "50").split("\n").filter((l) => l.includes("user otto via web") && /(create|revoke) token/.test(l)).length, 2);
  await context.close();
});

test("an admin invites, and ends what was given", async () => {
  const context = await open({ storageState: state });
  const page = await context.newPage();
  await page.goto(`${server.url}#/people`);
  await page.fill("input[maxlength='64']", "ivo");
  await page.click("text=Add and invite");
  const link = await page.locator(".invitation code").textContent();
  assert.match(link, new RegExp(`^${server.url}#/login\\?code=`));
  await check(page, "invitation");
  const guest = await open({ allow: [/status of 401/] });
  const his = await signIn(guest, link);
  assert.match(await his.locator(".me").textContent(), /ivo\s*viewer/);
  await page.reload();
  const row = page.locator("[aria-label='Table: Users'] tr", { hasText: "ivo" });
  await row.getByRole("button", { name: "Remove" }).click();
  await page.click("dialog[open] .danger");
  await row.waitFor({ state: "detached" });
  await his.waitForSelector("text=Your session has ended");
  await guest.close();
  await context.close();
});

test("the audit log is filtered and exported", async () => {
  const context = await open({ storageState: state, acceptDownloads: true });
  const page = await context.newPage();
  await page.goto(`${server.url}#/audit`);
  await page.click("td a:has-text('create token')");
  await until("only one action", async () => (await page.locator("tbody td:nth-child(3)").allTextContents()).every((x) => x === "create token"));
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as CSV")]);
  const lines = (await (await import("node:fs/promises")).readFile(await download.path(), "utf8")).trim().split("\r\n");
  assert.equal(lines[0], "at,actor,action,subject,detail");
  assert.ok(lines.length > 1 && lines.slice(1).every((l) => /^20.*,create token,/.test(l)), lines.slice(0, 3).join("\n"));
  await context.close();
});

test("a run with 10,000 clients", async () => {
  const many = await world.agents(100, 100, "large");
  const large = server.operate("run", "start", plan("large", 1000, 9000));
  const context = await open({ storageState: state });
  const page = await context.newPage();
  await page.goto(`${server.url}#/runs/${large}`);
  await page.waitForSelector(".strip");
  assert.equal(await page.locator(".strip i").count(), 100);
  assert.equal(await page.locator(".cells").count(), 0);
  assert.match(await page.locator(".head .sub").textContent(), /1\d,\d{3} clients/);
  await until("updates are counted", async () => (await page.locator(".strip .full, .strip .part").count()) > 0);
  await shot(page, "server-large-light-1280");
  await check(page, "large run");
  await page.setViewportSize(viewport(390));
  await shot(page, "server-large-light-390");
  await check(page, "large run on a phone");
  // The operator stops the run on the page.
  await page.click("text=Stop the run");
  await page.click("dialog[open] .danger");
  await page.waitForSelector("text=stopped");
  await page.goto(server.url);
  await page.waitForSelector("text=Next page");
  await context.close();
  await many.stop();
});

test("the agent's page", async (t) => {
  for (const [theme, width] of looks) {
    await t.test(`${theme} at ${width} px`, async () => {
      const context = await open({ colorScheme: theme, viewport: viewport(width), timezoneId: "America/New_York" });
      const page = await context.newPage();
      await page.goto(agent.url);
      await page.waitForSelector(`text=${agent.client}`);
      await shot(page, `agent-clients-${theme}-${width}`);
      await check(page, "clients");
      await page.click(`a:has-text('${agent.client}')`);
      await page.waitForSelector(".plot canvas");
      for (const range of ["1 d", "28 d", "7 d"]) {
        await page.click(`button:has-text('${range}')`);
        await until(`range ${range}`, async () => (await page.locator("button[aria-pressed=true]").first().textContent()) === range);
        await page.waitForSelector(".plot canvas");
      }
      await page.click("button:has-text('lead 1 h')");
      await pause(500);
      await page.locator(".plot").focus();
      await page.keyboard.press("Home");
      await until("the keyboard reads the chart", async () => /UTC\): load/.test(await page.locator(".readout").textContent()));
      const reading = await page.locator(".readout").textContent();
      const [, hour, utcHour] = /(\d\d):\d\d \((\d\d):\d\d UTC\)/.exec(reading);
      assert.ok([1, 2].includes((hour - utcHour + 24) % 24), `${reading}: not the site's zone, Europe/Berlin`);
      await shot(page, `agent-client-${theme}-${width}`);
      await check(page, "client");
      await page.click("text=Show as table");
      await page.waitForSelector("[aria-label*='as a table'] tbody tr");
      await check(page, "client's table");
      await context.close();
    });
  }
});

test("the agent's page shows the energies and the peak of its interface", async () => {
  const context = await open();
  const page = await context.newPage();
  await page.goto(`${agent.url}#/${agent.client}`);
  const rows = page.locator("[aria-label$='The next days'] tbody tr");
  // shows reports whether a text contains the numbers in order, each rounded to the digits shown in the text.
  const shows = (text, numbers) => {
    const found = [...text.matchAll(/\d[\d,\u202f\u00a0]*(?:\.\d+)?/g)].map((m) => m[0].replace(/[^\d.]/g, ""));
    return found.length === numbers.length && found.every((x, i) => Math.abs(numbers[i]).toFixed((x.split(".")[1] ?? "").length) === x);
  };
  await until("the page and the interface agree", async () => {
    const f = await (await fetch(`${agent.url}v1/forecasts/${agent.client}`)).json();
    const known = (...x) => x.filter((v) => v != null);
    if (!f.energy.length || (await rows.count()) !== f.energy.length) return false;
    for (const [i, d] of f.energy.entries()) {
      const [, energy, band] = await rows.nth(i).locator("td, th").allTextContents();
      if (!shows(energy, [d.mean]) || !shows(band, known(d.P10, d.P90))) return false;
    }
    const peak = (await page.locator("p:has-text('Highest step of the next 24 hours')").textContent()).split("hours: ")[1].split(", most")[0];
    return shows(peak, [f.peak.P50, f.peak.P10, f.peak.P90]);
  });
  await context.close();
});

test("the agent audits its updates", async () => {
  const context = await open();
  const page = await context.newPage();
  await page.goto(`${agent.url}#/${agent.client}`);
  await page.click("text=what its updates reveal");
  await page.waitForSelector("text=No audit yet");
  await check(page, "no audit");
  await page.click("button:has-text('Audit')");
  await page.waitForSelector("text=/The audit runs|no update of this client/");
  await check(page, "an audit that runs");
  // A real audit takes minutes, so the page shows the example in the agent's description of its interface.
  const described = (await (await fetch(`${agent.url}openapi.json`, { headers: { Authorization: `Bearer ${agent.token}` } })).json()).paths["/v1/audit/{client}"].get;
  await page.route("**/v1/audit/**", (r) => r.fulfill({ json: described.responses["200"].content["application/json"].example }));
  await page.reload();
  await until("the curves", async () => (await page.locator(".plot canvas").count()) > 0);
  for (const text of await page.locator("figcaption").allTextContents()) assert.match(text, /correlation −?\d\.\d\d, and −?\d\.\d\d if it knew the secret/);
  assert.match(await page.locator("[aria-label$='What it finds'] tbody tr").first().textContent(), /well0\.86/);
  await page.locator(".plot").first().focus();
  await page.keyboard.press("Home");
  await until("the keyboard reads the curve", async () => /00:00: truth/.test(await page.locator(".readout").first().textContent()));
  await shot(page, "agent-audit-light-1280");
  await check(page, "audit");
  await page.unroute("**/v1/audit/**");
  await page.goto(`${agent.url}#/nobody/audit`);
  await page.waitForSelector("[role=alert]");
  await context.close();
});

test("the agent's page says that readings are missing", async () => {
  const context = await open();
  const page = await context.newPage();
  await page.goto(`${agent.url}#/${agent.client}`);
  await page.waitForSelector(".keys >> text=reading missing");
  assert.match(await page.locator("figcaption").textContent(), /readings missing/);
  await page.goto(`${agent.url}#/nobody`);
  await page.waitForSelector("[role=alert]");
  await context.close();
});

test("the agent's page asks for a token", async () => {
  await agent.restart(true);
  const context = await open({ allow: [/status of 401/, /ERR_/] });
  const page = await context.newPage();
  await page.goto(agent.url);
  await page.waitForSelector("text=asks for a token");
  await check(page, "token");
  await page.fill("input[type=password]", "wrong");
  await page.click("text=Open");
  await page.waitForSelector("[role=alert]");
  await page.fill("input[type=password]", agent.token);
  await page.click("text=Open");
  await page.waitForSelector(`text=${agent.client}`);
  await page.reload();
  await page.waitForSelector(`text=${agent.client}`);
  await agent.stop();
  await page.waitForSelector("text=Connection lost");
  await agent.restart(true);
  await page.waitForSelector("text=Connection lost", { state: "detached" });
  await context.close();
});

test("no reading and no forecast of a client reaches the server's pages", async () => {
  const markers = await agent.markers();
  assert.ok(markers.length > 5);
  const own = world.seen.filter((s) => s.url.startsWith(agent.url)).map((s) => s.text).join("\n");
  assert.ok(markers.some((m) => own.includes(m)), "the markers are on the agent's page, so the search can find them");
  // Search what browsers have received, and the responses to every call.
  const cookie = `${state.cookies[0].name}=${state.cookies[0].value}`;
  const call = async (method, body = {}) => (await fetch(`${server.url}api/loadstar.v1.OperatorService/${method}`, { method: "POST", headers: { "Content-Type": "application/json", Cookie: cookie }, body: JSON.stringify(body) })).text();
  const answers = [];
  for (const [method, body] of [["GetFleet"], ["ListAgents"], ["ListClients"], ["ListClients", { name: agent.client }], ["GetClient", { client: agent.client }], ["ListRuns"], ["GetRun", { run, rounds: 1000 }],
    ["ListTurns", { run, round: 1 }], ["ListFindings", { days: 14 }], ["ListReports", { days: 14 }], ["ListReleases"], ["ListAudit", { limit: 1000 }], ["ListUsers"], ["ListSessions"], ["ListCertificates"]]) {
    answers.push({ url: method, text: await call(method, body) });
  }
  assert.match(answers.find((a) => a.url === "GetClient").text, new RegExp(agent.client), "the server knows the client");
  const stop = new AbortController();
  const events = await fetch(`${server.url}api/events?topics=fleet,runs,run:${run},turns:${run}`, { headers: { Cookie: cookie }, signal: stop.signal });
  let text = "";
  setTimeout(() => stop.abort(), 3000);
  try {
    for await (const b of events.body) text += Buffer.from(b);
  } catch {
    // the request was aborted
  }
  assert.match(text, /event: fleet/);
  answers.push({ url: "events", text });
  const context = await open({ storageState: state });
  const page = await context.newPage();
  for (const path of ["", `clients/${agent.client}`, "data", "models", "audit", `runs/${run}`]) {
    await page.goto(`${server.url}#/${path}`);
    await page.waitForSelector("h1");
    await pause(500);
    answers.push({ url: `page ${path}`, text: await page.content() });
  }
  await context.close();
  answers.push(...world.seen.filter((s) => !s.url.startsWith(agent.url)));
  const found = answers.flatMap((a) => markers.filter((m) => a.text.includes(m)).map((m) => `${a.url} has ${m}`));
  assert.deepEqual(found, []);
});

test("no console error, no policy violation, no request elsewhere", () => {
  assert.deepEqual(world.wrong, []);
});
