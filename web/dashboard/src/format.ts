// These functions format numbers, times and sizes as text. An unknown value is shown as "-", never as an invented
// figure.

export const none = "-";

// n reads a number from a proto3 JSON message, in which 64-bit integers are strings and zeros are absent.
export const n = (x: string | number | undefined | null): number => Number(x ?? 0);

// no returns a round's displayed number, which counts from 1, as on the command line. The API counts from 0.
export const no = (x: { round?: string | number }): number => n(x.round) + 1;

const plain = new Intl.NumberFormat("en");
export const count = (x: number): string => plain.format(Math.round(x));
export const several = (x: number, one: string, many = one + "s"): string => `${count(x)} ${x === 1 ? one : many}`;

export const fixed = (x: number | null | undefined, digits: number): string => (x == null || !Number.isFinite(x) ? none : x.toFixed(digits).replace("-", "−"));
export const percent = (share: number | null | undefined, digits = 0): string => (share == null || !Number.isFinite(share) ? none : `${fixed(100 * share, digits)} %`);

// load formats a load with three significant digits or more.
export const load = (x: number | null | undefined): string => (x == null ? none : Math.abs(x) >= 1000 ? count(x).replace("-", "−") : fixed(x, Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : Math.abs(x) >= 1 ? 2 : 3));

export function bytes(x: number): string {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const) if (x >= size) return `${(x / size).toFixed(x >= 10 * size ? 0 : 1)} ${unit}`;
  return `${count(x)} B`;
}

export function span(ms: number): string {
  const s = Math.max(ms, 0) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 90 * 60) return `${Math.round(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.round(s / 3600)} h`;
  return `${count(s / 86400)} days`;
}

// age formats a duration in whole units, for texts that count up.
export const age = (ms: number): string => (ms < 100e3 ? `${Math.max(Math.round(ms / 1000), 0)} s` : span(ms));

export const utc = (ms: number): string => `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;

const clocks = new Map<string, Intl.DateTimeFormat>();
function clock(zone: string | undefined, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = zone + JSON.stringify(options);
  let f = clocks.get(key);
  if (!f) clocks.set(key, (f = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone })));
  return f;
}

// local formats a time in a zone, by default the viewer's.
export const local = (ms: number, zone?: string): string =>
  clock(zone, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" }).format(ms);
export const localDay = (ms: number, zone?: string): string => clock(zone, { weekday: "short", day: "numeric", month: "short" }).format(ms);
export const localHour = (ms: number, zone?: string): string => clock(zone, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }).format(ms);

// day formats a number of days since 1970-01-01.
export const day = (days: number): string => new Date(days * 86400e3).toISOString().slice(0, 10);

// offset returns how many seconds a zone is ahead of UTC at a time.
export function offset(ms: number, zone: string): number {
  const parts = clock(zone, { year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric", hourCycle: "h23" }).formatToParts(ms);
  const at = (type: string) => Number(parts.find((p) => p.type === type)!.value);
  return Math.round((Date.UTC(at("year"), at("month") - 1, at("day"), at("hour"), at("minute"), at("second")) - Math.floor(ms / 1000) * 1000) / 1000);
}

// seconds converts an ISO 8601 duration of hours, minutes and seconds to seconds.
export function seconds(iso: string): number {
  const m = /^PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?$/.exec(iso);
  return m ? 3600 * n(m[1]) + 60 * n(m[2]) + n(m[3]) : 0;
}

// reference names the forecast to which a relative MAE refers, given the text of an effective plan. Auto has the same
// meaning as in forecast.Reference.
export function reference(plan: string): string {
  const known: Record<string, string> = { "last-week": "last week's profile", "last-day": "yesterday's profile", "last-value": "the last value" };
  const setting = (name: string) => new RegExp(`[\\s{,]${name}:\\s*"?([\\w-]+)`).exec(plan)?.[1];
  const named = setting("reference");
  if (named && known[named]) return known[named];
  const targets = setting("targets"), horizon = setting("horizon");
  if (targets === undefined && horizon === undefined) return "the reference forecast";
  return known[n(targets ?? 1) === 1 && n(horizon ?? 1) === 1 ? "last-value" : "last-week"]!;
}

// sentence turns a clause of the API into a sentence.
export const sentence = (s: string | undefined): string => (s ? s[0]!.toUpperCase() + s.slice(1) + (/[.!?]$/.test(s) ? "" : ".") : "");

// better describes how much better than the reference a forecast with a given relative MAE is.
export function better(relative: number | null | undefined): { figure: string; word: string } {
  if (relative == null || !Number.isFinite(relative)) return { figure: none, word: "better than" };
  const gain = 100 * (1 - relative);
  return { figure: `${Math.abs(gain).toFixed(0)} %`, word: gain >= 0 ? "better than" : "worse than" };
}

// cell makes a value safe for a CSV file: it quotes the value, and prevents a spreadsheet from treating it as a
// formula.
export function cell(x: string): string {
  const safe = /^[=+\-@\t\r]/.test(x) ? `'${x}` : x;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
