import { defineConfig } from "vite";

// For development: `LOADSTAR=http://127.0.0.1:7445 npm run dev` serves the sources, and forwards calls to a running
// server or agent.
const target = process.env.LOADSTAR ?? "http://127.0.0.1:7445";

export default defineConfig({
  base: "./", // also works below a path of a proxy
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: { "/api": { target, changeOrigin: true }, "/v1": { target, changeOrigin: true } } },
  build: {
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // the first versions with light-dark()
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
