// Bundles src/ into one script and one style sheet, and collects the licences of
// what is in them. With an argument it writes there instead of into lab/report.
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../../lab/report"));
process.chdir(here);

const options = {
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2020"],
  charset: "ascii",
  legalComments: "none", // the whole texts are in the banner
  write: false,
  metafile: true,
  outdir: "out",
};
const script = await build({ ...options, entryPoints: ["src/page.js"] });
const style = await build({ ...options, entryPoints: ["src/page.css"] });

// The packages of which anything is left after the shaking.
const folders = new Set();
for (const [path, { bytesInOutput }] of Object.entries(Object.values(script.metafile.outputs)[0].inputs)) {
  const match = /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
  if (match && bytesInOutput > 0) folders.add(match[1]);
}
const packages = [...folders].sort().map((name) => {
  const dir = join("node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
  const file = readdirSync(dir).find((f) => /^licen[sc]e/i.test(f));
  if (!file || !existsSync(join(dir, file))) throw new Error(`${name} has no licence text`);
  return { name, version, license, text: readFileSync(join(dir, file), "utf8").replace(/\r\n/g, "\n").trim() };
});

const banner = packages
  .map((p) => `${p.name} ${p.version}, ${p.license}\n\n${p.text}\n`)
  .join("\n---\n\n")
  .replaceAll("*/", "* /");
const code = script.outputFiles[0].text;
if (/<\/script|<!--/i.test(code + banner)) throw new Error("the script would end the element that it stands in");

mkdirSync(join(out, "bundle"), { recursive: true });
writeFileSync(join(out, "bundle/page.js"), `/*!\n${banner}*/\n${code}`);
writeFileSync(join(out, "bundle/page.css"), style.outputFiles[0].text);
writeFileSync(
  join(out, "THIRD_PARTY.md"),
  "# What is bundled into reports\n\nWritten by `make web`. `bundle/page.js` holds parts of these packages, under these licences; " +
    "the texts are in every report too.\n\n| package | version | licence |\n|---|---|---|\n" +
    packages.map((p) => `| ${p.name} | ${p.version} | ${p.license} |\n`).join("") +
    packages.map((p) => `\n## ${p.name}\n\n\`\`\`text\n${p.text}\n\`\`\`\n`).join(""),
);
console.log(`bundle/page.js ${(code.length / 1e3).toFixed(0)} kB and ${(banner.length / 1e3).toFixed(0)} kB of licences, ${packages.length} packages`);
