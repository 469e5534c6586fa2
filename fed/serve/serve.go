// Package serve turns a trained plan into forecasts: it reads and writes the folder of a
// model, fits personal layers for clients that have none, and replays earlier issues.
package serve
