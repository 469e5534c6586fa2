// Package store keeps the readings of an agent's clients on disk: a day of a client is one
// value in a bbolt file.
package store
