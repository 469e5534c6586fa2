// Package archtest tests the architecture: which package may import which, and
// that every package has a package comment.
package archtest
