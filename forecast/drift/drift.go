// Package drift notices when a client's model becomes worse compared with a simple forecast.
package drift
