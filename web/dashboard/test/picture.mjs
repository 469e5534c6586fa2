// This script takes the pictures of the README and of docs/dashboard.md. Usage: node test/picture.mjs dashboard
// FILE.webp
//        node test/picture.mjs forecasts FILE.webp REPORT.html
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import * as world from "./world.mjs";

const { dir, open, run, server, signIn, start, until } = world;

// dashboard shows the page of a run that two real agents have trained on generated data.
async function dashboard() {
  await server.start();
  run("data", "generate", "--meters", "42", "--days", "120", "-o", "site");
  run("data", "prepare", "site", "-o", "site.prepared");
  for (const part of ["1/2", "2/2"]) {
    const folder = `agent-${part[0]}`;
    run("agent", "join", server.flags[1], server.operate("token", "create").split("\n").find((l) => l.startsWith("ls1-")), "--dir", folder);
    start("agent", "run", "--data", "site.prepared", "--part", part, "--dir", folder, "--workers", "1", "--policy", "trial", "--log-level", "warn");
  }
  writeFileSync(join(dir, "plan.yaml"), [
    "name: day-ahead", "algorithm: fedavg", "model: {name: dense, targets: 24}", "partition: correction", "rounds: 60", "client: {steps: 12}", "evaluate: {every: 2}", "",
  ].join("\n"));
  const id = server.operate("run", "start", "plan.yaml", "--wait-for", "42");
  const context = await open({ colorScheme: "light", viewport: { width: 1200, height: 980 } });
  const page = await signIn(context, server.link());
  await page.goto(`${server.url}#/runs/${id}`);
  await until("the end of the last round", async () => /^Round 60 of 60\w+ after /.test(await page.locator(".bar-wide p").textContent()), 900e3);
  await page.locator("text=After round 60").waitFor(); // the last round is always evaluated
  return { context, png: await page.screenshot() };
}

// forecasts shows a report's chart of load and forecasts, without its controls.
async function forecasts(report) {
  const context = await open({ colorScheme: "light", viewport: { width: 1100, height: 1200 } });
  const page = await context.newPage();
  await page.goto(pathToFileURL(resolve(report)).href);
  const figure = page.locator("figure[data-kind=fan]").first();
  await figure.getByLabel("Show").selectOption("14");
  await figure.getByLabel("From").fill("2017-11-20"); // two weeks without holidays
  await figure.locator(".controls").evaluate((e) => (e.style.display = "none"));
  const picture = figure.locator(".picture");
  await picture.evaluate((e) => (e.style.padding = "10px"));
  return { context, png: await picture.screenshot() };
}

const [name, file, ...rest] = process.argv.slice(2);
try {
  const { context, png } = await { dashboard, forecasts }[name](...rest);
  // The browser itself converts the picture, on a blank page, which has no content security policy.
  const blank = await context.newPage();
  const webp = await blank.evaluate(async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: image.width, height: image.height }).getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.86).split(",")[1];
  }, `data:image/png;base64,${png.toString("base64")}`);
  writeFileSync(file, Buffer.from(webp, "base64"));
  console.log(`${resolve(file)}: ${(Buffer.from(webp, "base64").length / 1e3).toFixed(0)} kB`);
} finally {
  await world.end();
}
