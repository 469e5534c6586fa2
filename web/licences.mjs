// This module collects the licences of the packages in a bundle, because each copy of a package must include its
// licence. Both builds use it.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

// packageOf returns the name of the package to which a module's path belongs, or null if the module is ours.
const packageOf = (path) => /(?:^|[\\/])node_modules[\\/]((?:@[^\\/]+[\\/])?[^\\/]+)/.exec(path)?.[1].replaceAll("\\", "/") ?? null;

// collect returns the name, version, licence and licence text of each package to which one of the modules belongs. root
// is the folder with node_modules.
export function collect(modules, root) {
  const names = new Set(modules.map(packageOf).filter(Boolean));
  return [...names].sort().map((name) => {
    const dir = join(root, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
    const file = readdirSync(dir).find((f) => /^licen[sc]e/i.test(f));
    if (!file) throw new Error(`${name} has no licence text`);
    return { name, version, license, text: readFileSync(join(dir, file), "utf8").replace(/\r\n/g, "\n").trim() };
  });
}

// banner returns a comment with the licences.
export const banner = (packages) =>
  packages
    .map((p) => `${p.name} ${p.version}, ${p.license}\n\n${p.text}\n`)
    .join("\n---\n\n")
    .replaceAll("*/", "* /");

// page returns the content of THIRD_PARTY.md.
export const page = (packages, title, intro) =>
  `# ${title}\n\n${intro}\n\n| package | version | licence |\n|---|---|---|\n` +
  packages.map((p) => `| ${p.name} | ${p.version} | ${p.license} |\n`).join("") +
  packages.map((p) => `\n## ${p.name}\n\n\`\`\`text\n${p.text}\n\`\`\`\n`).join("");
