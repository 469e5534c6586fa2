// Takes the picture of the README: the page of a run, while two real agents train it on generated data.
// Usage: node test/picture.mjs FILE.webp
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import * as world from "./world.mjs";

const { dir, open, pause, run, server, signIn, start, until } = world;
const out = resolve(process.argv[2] ?? "dashboard.webp");

try {
  await server.start();
  run("data", "generate", "--meters", "42", "--days", "120", "-o", "site");
  run("data", "prepare", "site", "-o", "site.prepared");
  for (const part of ["1/2", "2/2"]) {
    const folder = `agent-${part[0]}`;
    run("agent", "join", server.flags[1], server.operate("token", "create").split("\n").find((l) => l.startsWith("ls1-")), "--dir", folder);
    start("agent", "run", "--data", "site.prepared", "--part", part, "--dir", folder, "--workers", "1", "--log-level", "warn");
  }
  writeFileSync(join(dir, "plan.yaml"), [
    "name: day-ahead", "algorithm: fedavg", "model: {name: dense, targets: 24}", "partition: correction", "rounds: 60", "client: {steps: 12}", "evaluate: {every: 2}", "schedule: {cohort: 36}", "",
  ].join("\n"));
  const id = server.operate("runs", "start", "plan.yaml", "--wait-for", "42");
  const context = await open({ colorScheme: "light", viewport: { width: 1200, height: 980 } });
  const page = await signIn(context, server.link());
  await page.goto(`${server.url}#/runs/${id}`);
  const round = async () => Number((await page.locator(".bar-wide b").textContent()).replace(/\D/g, ""));
  await until("round 40", async () => (await round()) >= 40, 900e3);
  await until("a round that is half counted", async () => {
    const done = await page.locator(".cells .counted").count(), all = await page.locator(".cells .cell").count();
    return all > 30 && done > all / 4 && done < all;
  }, 300e3).catch((e) => console.error(`${e}: taken as it is`));
  await pause(200);
  const png = await page.screenshot({ fullPage: false });
  // The browser itself converts the picture, on a blank page that has no policy.
  const blank = await context.newPage();
  const webp = await blank.evaluate(async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: image.width, height: image.height }).getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.86).split(",")[1];
  }, `data:image/png;base64,${png.toString("base64")}`);
  writeFileSync(out, Buffer.from(webp, "base64"));
  console.log(`${out}: ${(Buffer.from(webp, "base64").length / 1e3).toFixed(0)} kB`);
} finally {
  await world.end();
}
