package testkit

import "testing"

// TestMissing checks that a test whose data is missing is skipped.
func TestMissing(t *testing.T) {
	t.Setenv("LOADSTAR_DATA", t.TempDir())
	t.Setenv(requireData, "")
	skipped := false
	t.Run("without data", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		Dataset(t, "hog-core42")
	})
	if !skipped {
		t.Error("the test ran without its data")
	}
}
