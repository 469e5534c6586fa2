// Package api is an agent's HTTP interface for forecasts, readings and metrics.
package api
