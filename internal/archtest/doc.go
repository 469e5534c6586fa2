// Package archtest tests the architecture: it checks that packages import only the packages
// that they may import, and that every package has a package comment.
package archtest
