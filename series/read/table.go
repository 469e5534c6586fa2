package read

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"loadstar/series/table"
)

// source is a file that contains a table. It is on disk or, in tests, in memory.
type source struct {
	name string
	open func() (file, error)
}

type file interface {
	io.Reader
	io.ReaderAt
	io.Seeker
	io.Closer
}

func fileSource(path string) source {
	return source{filepath.Base(path), func() (file, error) { return os.Open(path) }}
}

// stem returns the file's name up to its first dot.
func (s source) stem() string {
	stem, _, _ := strings.Cut(s.name, ".")
	return stem
}

// read opens the table and calls f with it. Errors start with the file name.
func (s source) read(format table.Format, f func(table.Table) error) error {
	in, err := s.open()
	if err != nil {
		return err
	}
	defer in.Close()
	t, err := newTable(in, format)
	if err == nil {
		err = f(t)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// errEnough is returned by a callback to stop reading a table before its end.
var errEnough = errors.New("enough")

// newTable opens a file as Parquet, as a spreadsheet, or as CSV, which may be gzipped. It
// detects the format from the first bytes.
func newTable(f file, format table.Format) (table.Table, error) {
	var magic [4]byte
	n, err := io.ReadFull(f, magic[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	switch string(magic[:n]) {
	case "PAR1":
		return table.OpenParquet(f, size)
	case "PK\x03\x04":
		s, err := table.OpenSheet(f, size, format.Sheet)
		if err != nil {
			return nil, err
		}
		return table.OpenCSV(bytes.NewReader(s.Text), format)
	}
	return table.OpenCSV(f, format)
}
