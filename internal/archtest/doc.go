// Package archtest holds the architecture as a test: which package may import
// which, and that each says what it is for.
package archtest
