// Collects the licences of the packages that a bundle holds. Both bundles use it, because each copy of a package must
// carry its licence.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

// packageOf returns the name of the package that a module's path is in, or null if it is ours.
const packageOf = (path) => /(?:^|[\\/])node_modules[\\/]((?:@[^\\/]+[\\/])?[^\\/]+)/.exec(path)?.[1].replaceAll("\\", "/") ?? null;

// collect returns name, version, licence and licence text of the packages that the modules are in. root is the folder
// with node_modules.
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

// banner returns the licences as the text of a comment.
export const banner = (packages) =>
  packages
    .map((p) => `${p.name} ${p.version}, ${p.license}\n\n${p.text}\n`)
    .join("\n---\n\n")
    .replaceAll("*/", "* /");

// page returns THIRD_PARTY.md.
export const page = (packages, title, intro) =>
  `# ${title}\n\n${intro}\n\n| package | version | licence |\n|---|---|---|\n` +
  packages.map((p) => `| ${p.name} | ${p.version} | ${p.license} |\n`).join("") +
  packages.map((p) => `\n## ${p.name}\n\n\`\`\`text\n${p.text}\n\`\`\`\n`).join("");
