package source

import (
	"bufio"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"

	"loadstar/series/table"
)

// group is a folder of converted files.
type group struct {
	dir   string
	files []File
}

// output is a CSV file that is being written. A file whose name ends with .gz is compressed.
// Its gzip header has no time, so that equal contents give equal files.
type output struct {
	*bufio.Writer
	group *group
	name  string
	file  *os.File
	zip   *gzip.Writer
	sum   hash.Hash
	lines int
}

// create begins a file with the given columns.
func (g *group) create(name string, columns ...string) (*output, error) {
	file, err := os.Create(filepath.Join(g.dir, name))
	if err != nil {
		return nil, err
	}
	o := &output{group: g, name: name, file: file, sum: sha256.New()}
	var packed io.Writer = file
	if strings.HasSuffix(name, ".gz") {
		// The level is valid, so NewWriterLevel returns no error.
		o.zip, _ = gzip.NewWriterLevel(file, gzip.BestCompression)
		packed = o.zip
	}
	o.Writer = bufio.NewWriterSize(io.MultiWriter(packed, o.sum), 1<<16)
	o.row([]byte(strings.Join(columns, ",")))
	o.lines = 0
	return o, nil
}

// row writes a line. The writer keeps the first error for close.
func (o *output) row(line []byte) {
	o.lines++
	_, _ = o.Write(line)
	_ = o.WriteByte('\n')
}

// close finishes the file and adds it to the group. If err is not nil, the contents are not
// complete.
func (o *output) close(err error) error {
	errs := []error{err, o.Flush()}
	if o.zip != nil {
		errs = append(errs, o.zip.Close())
	}
	if err := errors.Join(append(errs, o.file.Close())...); err != nil {
		return err
	}
	o.group.files = append(o.group.files, File{Name: o.name, Rows: o.lines, Sum: hex.EncodeToString(o.sum.Sum(nil))})
	return nil
}

// write writes a complete file. It calls rows, which calls its argument for each line.
func (g *group) write(name string, columns []string, rows func(row func([]byte)) error) error {
	o, err := g.create(name, columns...)
	if err != nil {
		return err
	}
	return o.close(rows(o.row))
}

// columns finds, in a header, the columns to read.
type columns func(header []string) ([]int, error)

// named finds columns by their names.
func named(names ...string) columns {
	return func(header []string) ([]int, error) {
		at := make([]int, len(names))
		for i, name := range names {
			if at[i] = slices.Index(header, name); at[i] < 0 {
				return nil, fmt.Errorf("there is no column %s", name)
			}
		}
		return at, nil
	}
}

// placed finds the first columns, whatever their names.
func placed(count int) columns {
	return func(header []string) ([]int, error) {
		if len(header) < count {
			return nil, fmt.Errorf("there are %d columns, not %d", len(header), count)
		}
		at := make([]int, count)
		for i := range at {
			at[i] = i
		}
		return at, nil
	}
}

// readCSV calls each with the given columns of every row of a CSV file, which may be gzipped.
// It reuses the slice for the next row.
func readCSV(path string, find columns, each func(row []string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := readRows(file, find, each); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func readRows(file io.Reader, find columns, each func(row []string) error) error {
	plain, err := table.Unpack(file)
	if err != nil {
		return err
	}
	text, err := table.Decode(plain, "utf-8")
	if err != nil {
		return err
	}
	rows := csv.NewReader(text)
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		return table.CutOff(err)
	}
	at, err := find(header)
	if err != nil {
		return err
	}
	row := make([]string, len(at))
	for {
		fields, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i, column := range at {
			row[i] = fields[column]
		}
		if err := each(row); err != nil {
			line, _ := rows.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}
