package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"loadstar/internal/finding"
)

func TestKind(t *testing.T) {
	for _, k := range []struct {
		kind         string
		strict, lazy finding.Level
	}{
		{"ext4", finding.OK, finding.OK},
		{"", finding.OK, finding.OK},
		{"nfs", finding.Fail, finding.Warn},
		{"cifs", finding.Fail, finding.Warn},
		{"fuse", finding.Warn, finding.Warn},
		{"tmpfs", finding.Warn, finding.Warn},
		{"overlay", finding.Warn, finding.Warn},
	} {
		var l finding.List
		kind(&l, "kind", "dir", Space{Kind: k.kind}, nil, true)
		kind(&l, "kind", "dir", Space{Kind: k.kind}, nil, false)
		if l[0].Level != k.strict || l[1].Level != k.lazy {
			t.Errorf("%s: %v", k.kind, l)
		}
	}
	var l finding.List
	kind(&l, "kind", "dir", Space{}, errors.New("no"), true)
	if l[0].Level != finding.Warn {
		t.Error(l)
	}
}

func TestRealFileSystems(t *testing.T) {
	s, err := Of(t.TempDir())
	if err != nil || s.Free <= 0 || s.ReadOnly {
		t.Errorf("%+v: %v", s, err)
	}
	if _, err := os.Stat("/proc/self"); err == nil {
		if s, err := Of("/dev/shm"); err == nil && s.Kind != "tmpfs" {
			t.Errorf("/dev/shm is %+v", s)
		}
	}
	var l finding.List
	dir := t.TempDir()
	Writable(&l, "writing", dir)
	Writable(&l, "writing", filepath.Join(dir, "none"))
	Room(&l, "room", filepath.Join(dir, "none"))
	if l[0].Level != finding.OK || l[1].Level != finding.Fail || l[2].Level != finding.Warn {
		t.Error(l)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
