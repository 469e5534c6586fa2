// Components that all pages use.
import { Fragment, type ComponentChildren, type VNode } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { age, local, utc } from "./format";

// useNow returns the time, and renders again at an interval.
export function useNow(every = 1000): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const t = setInterval(() => set(Date.now()), every);
    return () => clearInterval(t);
  }, [every]);
  return now;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title ? `${title} · Loadstar` : "Loadstar";
  }, [title]);
}

export type Asked<T> = { value?: T; error?: Error; busy: boolean; again: () => void };

// useAsk calls a function when its keys change, and keeps the newest result.
export function useAsk<T>(ask: () => Promise<T>, keys: unknown[]): Asked<T> {
  const [state, set] = useState<{ value?: T; error?: Error; busy: boolean }>({ busy: true });
  const [turn, again] = useState(0);
  useEffect(() => {
    let gone = false;
    set((s) => ({ ...s, busy: true }));
    ask().then(
      (value) => gone || set({ value, busy: false }),
      (error) => gone || set((s) => ({ value: s.value, error, busy: false })),
    );
    return () => {
      gone = true;
    };
  }, [...keys, turn]);
  return { ...state, again: () => again((x) => x + 1) };
}

// --- Text

export const Time = ({ ms, zone }: { ms: number; zone?: string }) =>
  ms > 0 ? (
    <time dateTime={new Date(ms).toISOString()} title={utc(ms)}>
      {local(ms, zone)}
    </time>
  ) : (
    <>-</>
  );

export function Ago({ ms }: { ms: number }) {
  const now = useNow(5000);
  if (!(ms > 0)) return <>-</>;
  return (
    <time dateTime={new Date(ms).toISOString()} title={`${local(ms)} (${utc(ms)})`}>
      {now - ms < 1500 ? "now" : `${age(now - ms)} ago`}
    </time>
  );
}

const glyphs = {
  dot: <circle cx="6" cy="6" r="4" />,
  ring: <circle cx="6" cy="6" r="3.4" class="line" />,
  half: <path d="M6 1.6a4.4 4.4 0 1 0 0 8.8z M6 2.2a3.8 3.8 0 0 1 0 7.6" class="half" />,
  tick: <path d="M2 6.4l2.8 2.8L10 3.4" class="line" />,
  stop: <rect x="2.4" y="2.4" width="7.2" height="7.2" rx="1" />,
  cross: <path d="M2.6 2.6l6.8 6.8M9.4 2.6l-6.8 6.8" class="line" />,
  warn: <path d="M6 1.2L11.4 10.6H.6z" />,
};
type Tone = "good" | "busy" | "warn" | "bad" | "calm";

// States differ by shape and word. Colour only repeats the difference.
const states: Record<string, [keyof typeof glyphs, Tone]> = {
  running: ["dot", "busy"], open: ["dot", "busy"], merging: ["half", "busy"], waiting: ["half", "calm"],
  finished: ["tick", "good"], merged: ["tick", "good"], counted: ["tick", "good"], here: ["tick", "good"], offered: ["tick", "good"], OK: ["tick", "good"], valid: ["tick", "good"], model: ["tick", "good"],
  stopped: ["stop", "calm"], asked: ["ring", "calm"], generic: ["half", "good"], superseded: ["ring", "calm"],
  quiet: ["warn", "warn"], "silent while training": ["warn", "warn"], ESTIMATED: ["warn", "warn"], week: ["ring", "warn"], day: ["ring", "warn"], last: ["ring", "warn"], drift: ["warn", "warn"], declined: ["warn", "warn"], lost: ["ring", "warn"], "wants a round": ["half", "warn"],
  failed: ["cross", "bad"], abandoned: ["cross", "bad"], revoked: ["cross", "bad"], copied: ["warn", "bad"], withdrawn: ["cross", "bad"], MISSING: ["cross", "bad"], none: ["cross", "bad"], expired: ["cross", "bad"],
};

export function State({ of, children }: { of: string; children?: ComponentChildren }) {
  const [glyph, tone] = states[of] ?? ["ring", "calm"];
  return (
    <span class={`state ${tone}`}>
      <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">{glyphs[glyph]}</svg>
      {children ?? of}
    </span>
  );
}

export const Code = ({ children }: { children: ComponentChildren }) => <code>{children}</code>;

// Copy shows a text that users need elsewhere, with a button that copies it.
export function Copy({ text, label }: { text: string; label: string }) {
  const [said, say] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("copied");
    } catch {
      say("select the text and copy it");
    }
    setTimeout(() => say(""), 3000);
  };
  return (
    <div class="copy">
      <pre tabIndex={0} role="region" aria-label={label}><code>{text}</code></pre>
      <button type="button" class="small" onClick={copy}>Copy<span class="hidden"> {label}</span></button>
      <span role="status" class="note">{said}</span>
    </div>
  );
}

// --- Blocks

export function Section({ title, note, action, children, id }: { title: string; note?: ComponentChildren; action?: ComponentChildren; children: ComponentChildren; id?: string }) {
  const own = useId();
  return (
    <section aria-labelledby={id ?? own} class="card">
      <div class="cardhead">
        <h2 id={id ?? own}>{title}</h2>
        {action}
      </div>
      {note && <p class="note">{note}</p>}
      {children}
    </section>
  );
}

export type Figure = { label: ComponentChildren; value: ComponentChildren; unit?: string; note?: ComponentChildren; tone?: Tone };

export const Figures = ({ items, label }: { items: Figure[]; label: string }) => (
  <dl class="figures" aria-label={label}>
    {items.map((f, i) => (
      <div key={i}>
        <dt>{f.label}</dt>
        <dd class={f.tone}>
          {f.value}
          {f.unit && <span class="unit"> {f.unit}</span>}
        </dd>
        {f.note && <dd class="note">{f.note}</dd>}
      </div>
    ))}
  </dl>
);

// Generated states once per screen that the data is synthetic.
export const Generated = ({ when }: { when: boolean | undefined }) =>
  when ? (
    <p class="generated">
      <strong>GENERATED</strong> No meter measured this data. It shows how Loadstar works, not how well it forecasts your load.
    </p>
  ) : null;

export const Empty = ({ title, children }: { title: string; children?: ComponentChildren }) => (
  <div class="empty">
    <p><strong>{title}</strong></p>
    {children}
  </div>
);

export const Failure = ({ error, again }: { error: Error | undefined; again?: () => void }) =>
  error ? (
    <div class="failure" role="alert">
      <p><strong>That did not work:</strong> {error.message}</p>
      {again && <button type="button" class="small" onClick={again}>Try again</button>}
    </div>
  ) : null;

export const Waiting = () => <p class="note waiting" role="status">Loading…</p>;

export type Column<T> = { head: string; of: (row: T) => ComponentChildren; number?: boolean; title?: string };

// Table scrolls inside its own box. A shadow shows that there is more to see.
export function Table<T>({ label, columns, rows, id, empty }: { label: string; columns: Column<T>[]; rows: T[]; id: (row: T) => string; empty?: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  const [more, set] = useState(false);
  useEffect(() => {
    const el = box.current;
    if (!el) return;
    const look = () => set(el.scrollWidth - el.clientWidth - el.scrollLeft > 4);
    look();
    const watch = new ResizeObserver(look);
    watch.observe(el);
    if (el.firstElementChild) watch.observe(el.firstElementChild);
    el.addEventListener("scroll", look, { passive: true });
    return () => {
      watch.disconnect();
      el.removeEventListener("scroll", look);
    };
  }, [rows.length > 0]);
  if (rows.length === 0) return <>{empty ?? <p class="note">None.</p>}</>;
  return (
    <div class={more ? "scroller more" : "scroller"}>
      <div class="scroll" ref={box} tabIndex={0} role="region" aria-label={`Table: ${label}`}>
        <table>
          <thead>
            <tr>
              {columns.map((c) => (
                <th key={c.head} scope="col" class={c.number ? "number" : undefined} title={c.title}>{c.head}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={id(row)}>
                {columns.map((c, i) => (i === 0 ? <th key={c.head} scope="row" class={c.number ? "number" : undefined}>{c.of(row)}</th> : <td key={c.head} class={c.number ? "number" : undefined}>{c.of(row)}</td>))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {more && <p class="hint" aria-hidden="true">more columns →</p>}
    </div>
  );
}

// Field is a labelled control. It passes to of the id that the control must have, and the id of the hint.
export function Field({ label, hint, of }: { label: string; hint?: ComponentChildren; of: (id: string, hintID: string | undefined) => ComponentChildren }) {
  const id = useId();
  const hintID = hint ? `${id}-hint` : undefined;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {of(id, hintID)}
      {hint && <span id={hintID} class="note">{hint}</span>}
    </div>
  );
}

// NumberField is a field for a whole number. An empty field has the value undefined.
export const NumberField = ({ label, hint, value, set, min, max, required }: { label: string; hint?: ComponentChildren; value: number | undefined; set: (n: number | undefined) => void; min: number; max: number; required?: boolean }) => (
  <Field label={label} hint={hint} of={(id, hintID) => (
    <input id={id} type="number" inputMode="numeric" aria-describedby={hintID} min={min} max={max} step={1} required={required} value={value ?? ""}
      onInput={(e) => set(e.currentTarget.value === "" ? undefined : e.currentTarget.valueAsNumber)} />
  )} />
);

// Pages shows the buttons below a table that has more rows.
export const Pages = ({ first, next, busy }: { first?: () => void; next?: () => void; busy?: boolean }) =>
  first || next ? (
    <p class="buttons">
      {first && <button type="button" class="small" onClick={first} disabled={busy}>First page</button>}
      {next && <button type="button" class="small" onClick={next} disabled={busy}>Next page</button>}
    </p>
  ) : null;

// Search is a field that reports its text after a pause in typing.
export function Search({ label, value, set, hint }: { label: string; value: string; set: (s: string) => void; hint?: string }) {
  const [text, type] = useState(value);
  const id = useId();
  useEffect(() => {
    if (text === value) return;
    const t = setTimeout(() => set(text.trim()), 300);
    return () => clearTimeout(t);
  }, [text]);
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input id={id} type="search" value={text} placeholder={hint} autocomplete="off" spellcheck={false} onInput={(e) => type(e.currentTarget.value)} />
    </div>
  );
}

// Confirm is a button that asks for confirmation before an action that affects others. ready can prevent the question,
// for example while a form is incomplete. about distinguishes the buttons of a table for screen readers.
export function Confirm({ label, about, small, title, children, yes, act, ready, danger = true }: { label: string; about?: string; small?: boolean; title: string; children?: ComponentChildren; yes: string; act: () => Promise<unknown>; ready?: () => boolean; danger?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [error, fail] = useState<Error>();
  const heading = useId();
  const doIt = async () => {
    setBusy(true);
    fail(undefined);
    try {
      await act();
      dialog.current?.close();
    } catch (e) {
      fail(e as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" class={small ? "small" : danger ? undefined : "primary"} onClick={() => { fail(undefined); if (ready?.() ?? true) dialog.current?.showModal(); }}>{label}{about && <span class="hidden"> {about}</span>}</button>
      <dialog ref={dialog} aria-labelledby={heading}>
        <h2 id={heading}>{title}</h2>
        {children}
        <Failure error={error} />
        <p class="buttons">
          <button type="button" class={danger ? "danger" : "primary"} disabled={busy} onClick={doIt}>{yes}</button>
          <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
        </p>
      </dialog>
    </>
  );
}

// --- Theme

const themes = ["system", "light", "dark"] as const;
type Theme = (typeof themes)[number];

function stored(): Theme {
  try {
    const t = localStorage.getItem("loadstar-theme") as Theme;
    return themes.includes(t) ? t : "system";
  } catch {
    return "system"; // storage is disabled
  }
}

function apply(t: Theme): void {
  if (t === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = t;
  dispatchEvent(new Event("theme"));
}
apply(stored());

const sun = <><circle cx="10" cy="10" r="3.6" /><path d="M10 1.5v2.6M10 15.9v2.6M1.5 10h2.6M15.9 10h2.6M4 4l1.8 1.8M14.2 14.2L16 16M4 16l1.8-1.8M14.2 5.8L16 4" /></>;
const moon = <path d="M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7z" />;
const both = <><circle cx="10" cy="10" r="7" /><path d="M10 3a7 7 0 0 1 0 14z" class="fill" /></>;
const pictures: Record<Theme, VNode> = { system: both, light: sun, dark: moon };

export function ThemeSwitch() {
  const [theme, set] = useState(stored);
  const next = themes[(themes.indexOf(theme) + 1) % themes.length]!;
  const change = () => {
    try {
      localStorage.setItem("loadstar-theme", next);
    } catch {
      // storage is disabled, so the choice lasts until the page is closed
    }
    set(next);
    apply(next);
  };
  return (
    <button type="button" class="icon" onClick={change} title={`Theme: ${theme}. Change to ${next}.`} aria-label={`Theme: ${theme}. Change to ${next}.`}>
      <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">{pictures[theme]}</svg>
    </button>
  );
}

export const Mark = () => (
  <svg class="mark" viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
    <path d="M12 1l2.6 8.4L23 12l-8.4 2.6L12 23l-2.6-8.4L1 12l8.4-2.6z" />
  </svg>
);

// Frame is the part around the content of every page. After a change of page, the focus moves to the new page.
export function Frame({ pages, here, user, children, below, page }: { pages: [string, string, string][]; here: string; user?: ComponentChildren; children: ComponentChildren; below?: ComponentChildren; page?: string }) {
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
  }, [here, page]);
  const skip = (e: Event) => {
    e.preventDefault();
    main.current?.focus();
  };
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>Skip to content</a>
      <header>
        <a class="brand" href="#/"><Mark />Loadstar</a>
        {pages.length > 0 && (
          <nav aria-label="Pages">
            {pages.map(([id, title, to]) => (
              <a key={id} href={to} aria-current={id === here ? "page" : undefined}>{title}</a>
            ))}
          </nav>
        )}
        <div class="who">{user}<ThemeSwitch /></div>
      </header>
      <main id="main" ref={main} tabIndex={-1}>{children}</main>
      {below && <footer>{below}</footer>}
    </>
  );
}

export const Dots = ({ parts }: { parts: ComponentChildren[] }) => (
  <>{parts.filter((p) => p != null && p !== false && p !== "").map((p, i) => <Fragment key={i}>{i > 0 && <span class="dot"> · </span>}{p}</Fragment>)}</>
);
