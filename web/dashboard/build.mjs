// This script builds the two pages, gzips them, and collects the licences of the packages in them. It writes to
// internal/webui/bundle, or to the folder given as an argument. Each page is a separate build, so that an agent's
// binary contains only the agent's page.
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "vite";
import { banner, collect, page } from "../licences.mjs";

const limit = 60e3; // bytes of script, style and page together, gzipped
const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../../internal/webui"));
process.chdir(here);
mkdirSync(join(out, "bundle"), { recursive: true });

const all = new Map();
for (const name of ["server", "agent"]) {
  const { output } = await build({
    configFile: join(here, "vite.config.mjs"),
    logLevel: "warn",
    build: {
      write: false,
      rolldownOptions: {
        input: `${name}.html`,
        output: { entryFileNames: `ui/${name}.js`, assetFileNames: `ui/${name}[extname]`, codeSplitting: false },
      },
    },
  });
  const modules = output.flatMap((f) => Object.entries(f.modules ?? {})).filter(([, m]) => m.renderedLength > 0);
  const packages = collect(modules.map(([path]) => path), here);
  for (const p of packages) all.set(p.name, p);
  const files = Object.fromEntries(output.map((f) => [f.fileName.replace(/^ui\//, ""), Buffer.from(f.code ?? f.source).toString()]));
  const expected = [`${name}.css`, `${name}.html`, `${name}.js`];
  if (Object.keys(files).sort().join() !== expected.join()) throw new Error(`built ${Object.keys(files)}, wanted ${expected}`);
  files[`${name}.js`] = `/*!\n${banner(packages)}*/\n${files[`${name}.js`]}`;
  let sum = 0;
  for (const [file, text] of Object.entries(files)) {
    const packed = gzipSync(text, { level: 9 });
    sum += packed.length;
    writeFileSync(join(out, "bundle", `${file}.gz`), packed);
  }
  console.log(`${name}: ${(sum / 1e3).toFixed(1)} kB gzipped`);
  if (sum > limit) throw new Error(`the page of the ${name} has ${sum} bytes, more than ${limit}`);
}
writeFileSync(
  join(out, "THIRD_PARTY.md"),
  page(
    [...all.values()],
    "What is bundled into the dashboard",
    "Written by `make web`. The scripts in `bundle` hold parts of these packages, under these licences; the texts are in the scripts too.",
  ),
);
