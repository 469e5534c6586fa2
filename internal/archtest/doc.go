// Package archtest tests the architecture: it checks that packages import only the packages
// that they may import, that every package has a package comment, and that no type or function
// is too large.
package archtest
