// Package archtest tests the architecture. Packages must import only permitted packages, every
// package must have a comment, and no type or function may be too large.
package archtest
