// A page's address is the fragment: #/runs/k3v9x2ab?round=2.
import { useEffect, useState } from "preact/hooks";

export type Route = { path: string[]; query: URLSearchParams };

function parse(hash: string): Route {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2) as [string, string?];
  const decode = (s: string) => {
    try {
      return decodeURIComponent(s);
    } catch {
      return s;
    }
  };
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query ?? "") };
}

// link returns the address of a page.
export function link(path: string[], query: Record<string, string> = {}): string {
  const set = Object.entries(query).filter(([, v]) => v !== "");
  return `#/${path.map(encodeURIComponent).join("/")}${set.length ? `?${new URLSearchParams(set)}` : ""}`;
}

// go changes the address. With replace, the history does not keep the previous address.
export function go(to: string, replace = false): void {
  if (!replace) location.hash = to;
  else {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function useRoute(): Route {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => {
      if (/^#main$/.test(location.hash)) return; // the skip link
      set(parse(location.hash));
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
