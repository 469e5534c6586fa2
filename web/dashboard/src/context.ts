import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Info, Whoami } from "./api";

// Viewer is the user who is looking at the page.
export type Viewer = { who: Whoami; info: Info; operate: boolean; admin: boolean };

export const ViewerContext = createContext<Viewer>({ who: {}, info: { signed_in: false }, operate: false, admin: false });
export const useViewer = () => useContext(ViewerContext);
