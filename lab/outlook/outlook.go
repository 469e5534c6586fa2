// Package outlook forecasts the next hours and days of every meter of a dataset from a
// run's folder.
package outlook
