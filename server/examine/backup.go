package examine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/finding"
	"loadstar/server/pki"
)

// backupFile is the name of a file in the server's folder that contains the outcome of the
// newest backup.
const backupFile = "backup.json"

// Backup describes the newest successful backup and, if a later backup failed, the newest
// failed one.
type Backup struct {
	At    time.Time `json:"at"` // zero if none has succeeded
	File  string    `json:"file,omitempty"`
	Bytes int64     `json:"bytes,omitempty"`
	// Failed is the error of the newest backup, and FailedAt its time, if it failed.
	Failed   string    `json:"failed,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
}

// RecordBackup records the outcome of a backup for the running server and for doctor. After a
// failed backup, the record of the newest successful one remains.
func RecordBackup(dir string, b Backup) error {
	if b.Failed != "" {
		before, err := LastBackup(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			before = Backup{} // a damaged record must not hide the failure
		}
		b.At, b.File, b.Bytes = before.At, before.File, before.Bytes
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return disk.WritePrivate(filepath.Join(dir, backupFile), func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return err
	})
}

// LastBackup returns what RecordBackup recorded, or fs.ErrNotExist.
func LastBackup(dir string) (b Backup, err error) {
	text, err := os.ReadFile(filepath.Join(dir, backupFile))
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(text, &b)
}

func (c *Config) backup(all *finding.List) {
	const check, do = "backup", "start the timer: systemctl enable --now loadstar-backup.timer, or run loadstar backup every hour"
	b, err := LastBackup(c.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.isNew():
		all.OK(check, "this new server has no backup yet")
	case errors.Is(err, fs.ErrNotExist):
		all.Warn(check, do, "there is no backup of %s", c.Dir)
	case err != nil:
		all.Warn(check, do, "%v", err)
	case b.Failed != "":
		all.Fail(check, "see journalctl -u loadstar-backup; check the disk of the backups", "the newest one failed at %s: %s", b.FailedAt.Local().Format(time.DateTime), b.Failed)
	case time.Since(b.At) > backupWarning:
		all.Warn(check, do, "the newest backup is from %s: %s", b.At.Local().Format(time.DateTime), b.File)
	default:
		all.OK(check, "%s, %s ago", b.File, time.Since(b.At).Round(time.Minute))
	}
}

// isNew reports whether the server's certificate authority is so new that the server need not
// have a backup yet.
func (c *Config) isNew() bool {
	if c.PKI == "" {
		return false
	}
	issuers, err := pki.Issuers(c.PKI)
	return err == nil && len(issuers) > 0 && time.Since(issuers[0].From) < backupWarning
}
