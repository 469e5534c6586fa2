// Package live forecasts for an agent's clients on schedule, scores the forecasts, and
// decides which model each client uses.
package live
