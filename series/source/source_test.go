package source

import (
	"path/filepath"
	"testing"

	"loadstar/internal/testkit"
)

// TestGroups converts source files that were made from each source's group, and compares all
// bytes with the group. LOADSTAR_TEST_LONG=1 tests all four sources.
func TestGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("reads all data")
	}
	type form struct {
		source Source
		write  func(t *testing.T, group, dir string)
	}
	usual := []form{{bdg2, writeBDG2}}
	for _, c := range testkit.Pick(usual, append(usual, form{cambridge, writeCambridge}, form{resstock, writeResStock}, form{sgsc, writeSGSC})) {
		t.Run(c.source.Name, func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			group := testkit.DataGroup(t, c.source.Folder)
			c.write(t, group, from)
			files, err := c.source.Convert(from, to)
			if err != nil {
				t.Error(err)
			}
			for _, f := range files {
				equal := contentSum(t, filepath.Join(group, f.Name)) == f.Sum
				if !equal {
					t.Errorf("%s differs", f.Name)
				}
				t.Logf("%-9s %-22s %8d rows, equal: %v", c.source.Name, f.Name, f.Rows, equal)
			}
			if len(files) != len(c.source.sums) {
				t.Errorf("%d files, want %d", len(files), len(c.source.sums))
			}
		})
	}
}
