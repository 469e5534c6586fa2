// Package schedule says how many clients are asked at a time, and when what they
// returned is merged: a file for each way.
package schedule
