// This script bundles src/ into one script and one style sheet, and collects the licences of
// the packages in them. It writes to lab/report, or to the folder given as an argument.
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { banner, collect, page } from "../licences.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../../lab/report"));
process.chdir(here);

const options = {
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2020"],
  charset: "ascii",
  legalComments: "none", // the banner contains the complete texts
  write: false,
  metafile: true,
  outdir: "out",
};
const script = await build({ ...options, entryPoints: ["src/page.js"] });
const style = await build({ ...options, entryPoints: ["src/page.css"] });

// The packages of which some code remains in the bundle.
const inputs = Object.entries(Object.values(script.metafile.outputs)[0].inputs);
const packages = collect(inputs.filter(([, { bytesInOutput }]) => bytesInOutput > 0).map(([path]) => path), here);
const licences = banner(packages);
const code = script.outputFiles[0].text;
if (/<\/script|<!--/i.test(code + licences)) throw new Error("the script would end the element that it stands in");

mkdirSync(join(out, "bundle"), { recursive: true });
writeFileSync(join(out, "bundle/page.js"), `/*!\n${licences}*/\n${code}`);
writeFileSync(join(out, "bundle/page.css"), style.outputFiles[0].text);
writeFileSync(
  join(out, "THIRD_PARTY.md"),
  page(
    packages,
    "What is bundled into reports",
    "Written by `make web`. `bundle/page.js` holds parts of these packages, under these licences; the texts are in every report too.",
  ),
);
console.log(`bundle/page.js ${(code.length / 1e3).toFixed(0)} kB and ${(licences.length / 1e3).toFixed(0)} kB of licences, ${packages.length} packages`);
