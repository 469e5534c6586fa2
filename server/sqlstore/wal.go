package sqlstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// errLog means that a write-ahead log contains committed transactions that cannot be read.
var errLog = errors.New("the write-ahead log is damaged")

const (
	logHeader   = 32
	frameHeader = 24
)

// checkLog checks the write-ahead log of a SQLite database that this process does not have
// open. SQLite takes the first frame with a wrong checksum as the end of the log, so damage
// would silently undo all later transactions. Each transaction is synced before the next one
// begins, so after a power loss, at most one transaction has frames that are not on disk. If
// more than one transaction follows the first wrong frame, the log is damaged. It is also
// damaged if it has fewer frames than SQLite's index of the log lists, because the index is
// updated only after a transaction is synced.
//
// Programs other than Loadstar may have written the log. The log may be missing or empty,
// because SQLite removes it when the last connection closes. The end of the log may be followed
// by frames of an earlier log, which have another salt, or by frames of rolled-back
// transactions, which have no commit.
func checkLog(database string) error {
	path := database + "-wal"
	log, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(log) < logHeader {
		return nil // there is no log, or it was just started
	} else if err != nil {
		return err
	}
	head := log[:logHeader]
	order := binary.ByteOrder(binary.LittleEndian)
	magic := binary.BigEndian.Uint32(head)
	if magic&1 != 0 {
		order = binary.BigEndian
	}
	size := int(binary.BigEndian.Uint32(head[8:]))
	s := logSum{order: order}
	s.add(head[:24])
	if magic&^1 != 0x377f0682 || !s.matches(head[24:]) || size < 512 || size > 65536 {
		if allZero(head) { // the header was never synced, so no transaction was synced
			return nil
		}
		return fmt.Errorf("%s: %w: its first %d bytes are wrong", path, errLog, logHeader)
	}
	wrong, commits, good := -1, 0, uint32(0)
	for off := logHeader; off+frameHeader+size <= len(log); off += frameHeader + size {
		frame := log[off : off+frameHeader+size]
		if string(frame[8:16]) != string(head[16:24]) {
			if wrong < 0 {
				wrong = off // the end of the log, or a frame whose salt is damaged
			}
			continue // a frame of an earlier log in the same file
		}
		if wrong < 0 {
			s.add(frame[:8])
			if s.add(frame[frameHeader:]); s.matches(frame[16:24]) {
				good++
				continue
			}
			wrong = off
		}
		if binary.BigEndian.Uint32(frame[4:8]) != 0 { // the last frame of a transaction
			commits++
		}
	}
	if commits > 1 {
		return fmt.Errorf("%s: %w: byte %d and the following ones cannot be read, but %d committed transactions follow", path, errLog, wrong, commits)
	}
	if want := indexed(database+"-shm", head[16:24]); good < want {
		return fmt.Errorf("%s: %w: it has %d frames, but its index lists %d", path, errLog, good, want)
	}
	return nil
}

// indexed returns the number of frames in a log according to its index, or 0 if the index
// belongs to another log or was not written completely. An index uses the machine's byte
// order.
func indexed(path string, salt []byte) uint32 {
	const size = 48 // size of the header, of which there are two copies
	head := make([]byte, 2*size)
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	if _, err := f.ReadAt(head, 0); err != nil || !bytes.Equal(head[:size], head[size:]) || !bytes.Equal(head[32:40], salt) {
		return 0
	}
	s := logSum{order: binary.NativeEndian}
	s.add(head[:40])
	if binary.NativeEndian.Uint32(head[40:]) != s.a || binary.NativeEndian.Uint32(head[44:]) != s.b {
		return 0
	}
	return binary.NativeEndian.Uint32(head[16:])
}

// logSum is the cumulative checksum of a log from its beginning.
type logSum struct {
	order binary.ByteOrder
	a, b  uint32
}

func (s *logSum) add(data []byte) {
	for ; len(data) >= 8; data = data[8:] {
		s.a += s.order.Uint32(data) + s.b
		s.b += s.order.Uint32(data[4:]) + s.a
	}
}

func (s *logSum) matches(stored []byte) bool {
	return binary.BigEndian.Uint32(stored) == s.a && binary.BigEndian.Uint32(stored[4:]) == s.b
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
