package table

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// maxPages limits the memory of the pages that are read at the same time, which are one page of
// each column. The limit applies to the sizes stated in page headers, because memory for a page
// is allocated before the page is read, and the header of a kilobyte page can state hundreds of
// megabytes. In a column that hardly changes, a page often contains a whole row group.
const (
	maxPages   = 64 << 20
	valueBytes = 8
)

// file is a Parquet file. Its wanted columns are read side by side, each one page at a time.
type file struct {
	r      io.ReaderAt
	size   int64
	file   *parquet.File
	leaves []leaf
}

// leaf is a schema column with values, as opposed to a group of columns.
type leaf struct {
	name  string
	node  parquet.Node
	lists bool // a row may have several values
}

// OpenParquet reads the schema of a Parquet file.
func OpenParquet(r io.ReaderAt, size int64) (Table, error) {
	t := &file{r: r, size: size}
	err := guard(func() error {
		// Check the footer's length first, because parquet-go allocates that many bytes.
		var tail [8]byte
		if _, err := r.ReadAt(tail[:], size-8); err != nil {
			return err
		}
		footer := int64(tail[0]) | int64(tail[1])<<8 | int64(tail[2])<<16 | int64(tail[3])<<24
		if string(tail[4:]) != "PAR1" || footer > size-12 {
			return io.ErrUnexpectedEOF
		}
		var err error
		t.file, err = parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		if err != nil {
			return err
		}
		for _, path := range t.file.Schema().Columns() {
			c, ok := t.file.Schema().Lookup(path...)
			if !ok {
				return fmt.Errorf("column %s is not in the schema", strings.Join(path, "."))
			}
			t.leaves = append(t.leaves, leaf{strings.Join(path, "."), c.Node, c.MaxRepetitionLevel > 0})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the Parquet file is incomplete or damaged: %w", CutOff(err))
	}
	return t, nil
}

// guard turns a panic into an error. parquet-go panics on some damaged files whose contents are
// contradictory, and fuzzing finds new cases in every version. f must not call back into our
// code, because guard would hide our panics.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	return f()
}

func (t *file) Columns() []string {
	var names []string
	for _, l := range t.leaves {
		names = append(names, l.name)
	}
	return names
}

func (t *file) Each(wanted []int, f func(cells []Cell) error) error {
	convert := make([]func(*parquet.Value) Cell, len(wanted))
	for i, c := range wanted {
		if t.leaves[c].lists {
			return fmt.Errorf("column %s contains lists; want one value per row", t.leaves[c].name)
		}
		err := guard(func() (err error) {
			convert[i], err = converter(t.leaves[c].node.Type())
			return err
		})
		if err != nil {
			return fmt.Errorf("column %s: %w", t.leaves[c].name, err)
		}
	}
	row := 0
	for g, group := range t.file.RowGroups() {
		columns := make([]columnReader, len(wanted))
		err := guard(func() error {
			left := int64(maxPages)
			for i, c := range wanted {
				if err := t.checkPages(&left, &t.file.Metadata().RowGroups[g].Columns[c].MetaData); err != nil {
					return fmt.Errorf("column %s: %w", t.leaves[c].name, CutOff(err))
				}
				columns[i].pages = group.ColumnChunks()[c].Pages()
			}
			return nil
		})
		if err == nil {
			err = eachRow(group.NumRows(), &row, columns, convert, f)
		}
		for i := range columns {
			columns[i].close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachRow reads the rows of a row group and calls f for each.
func eachRow(rows int64, row *int, columns []columnReader, convert []func(*parquet.Value) Cell, f func(cells []Cell) error) error {
	cells := make([]Cell, len(columns))
	for range rows {
		*row++
		for i := range columns {
			v, err := columns[i].next()
			if err != nil {
				return fmt.Errorf("row %d: %w", *row, err)
			}
			if v.IsNull() {
				cells[i] = Empty()
			} else {
				cells[i] = convert[i](v)
			}
		}
		if err := f(cells); err != nil {
			return fmt.Errorf("row %d: %w", *row, err)
		}
	}
	return nil
}

// checkPages checks that the pages of a column chunk lie within the file, and subtracts the
// memory of the largest page from the memory that is left.
func (t *file) checkPages(memory *int64, meta *format.ColumnMetaData) error {
	start := meta.DataPageOffset
	if meta.DictionaryPageOffset != 0 {
		start = min(start, meta.DictionaryPageOffset)
	}
	left := meta.TotalCompressedSize
	if start < 4 || left < 0 || start > t.size || left > t.size-start {
		return io.ErrUnexpectedEOF
	}
	r := bufio.NewReader(io.NewSectionReader(t.r, start, left))
	var protocol thrift.CompactProtocol
	decoder := thrift.NewDecoder(protocol.NewReader(r))
	largest := int64(0)
	for values := int64(0); values < meta.NumValues; {
		var h format.PageHeader
		if err := decoder.Decode(&h); err != nil {
			return err
		}
		var n int64
		switch {
		case h.DataPageHeader.Valid:
			n = int64(h.DataPageHeader.V.NumValues)
			values += n
		case h.DataPageHeaderV2.Valid:
			n = int64(h.DataPageHeaderV2.V.NumValues)
			values += n
		case h.DictionaryPageHeader.Valid:
			n = int64(h.DictionaryPageHeader.V.NumValues)
		}
		need := max(valueBytes*n, int64(h.UncompressedPageSize))
		if n < 0 || h.UncompressedPageSize < 0 || need > *memory {
			return fmt.Errorf("a page header states %d values in %d bytes; the pages that are read together may need %d MB: write the file with smaller pages or row groups", n, h.UncompressedPageSize, maxPages>>20)
		}
		largest = max(largest, need)
		if h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > left {
			return io.ErrUnexpectedEOF
		}
		if _, err := r.Discard(int(h.CompressedPageSize)); err != nil {
			return err
		}
	}
	*memory -= largest
	return nil
}

// columnReader reads a column's values one at a time.
type columnReader struct {
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buf    []parquet.Value
	at, n  int
}

// next returns the next value, which is valid until the following call.
func (c *columnReader) next() (*parquet.Value, error) {
	if c.at == c.n {
		if err := guard(c.fill); err != nil {
			return nil, CutOff(err)
		}
	}
	c.at++
	return &c.buf[c.at-1], nil
}

func (c *columnReader) fill() error {
	if c.buf == nil {
		c.buf = make([]parquet.Value, 1024)
	}
	for {
		if c.values != nil {
			n, err := c.values.ReadValues(c.buf)
			if c.at, c.n = 0, n; n > 0 {
				return nil
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			parquet.Release(c.page)
			c.values, c.page = nil, nil
		}
		page, err := c.pages.ReadPage()
		if err != nil {
			return err
		}
		c.page, c.values = page, page.Values()
	}
}

func (c *columnReader) close() {
	if c.pages != nil {
		c.pages.Close()
	}
}

// converter returns a function that converts a column's non-null values to cells.
func converter(t parquet.Type) (func(*parquet.Value) Cell, error) {
	if l := t.LogicalType(); l != nil {
		switch l := l.Value.(type) {
		case *format.TimestampType:
			if l.Unit.Value == nil {
				return nil, errors.New("its timestamps have no unit")
			}
			return timestamp(int64(time.Second/l.Unit.Value.Duration()), !l.IsAdjustedToUTC), nil
		case *format.DateType:
			return func(v *parquet.Value) Cell {
				return Time(int64(v.Int32())*86400, true, false)
			}, nil
		case *format.DecimalType:
			return decimal(t.Kind(), int(l.Scale))
		case *format.UUIDType:
			return func(v *parquet.Value) Cell { return Text([]byte(v.String())) }, nil
		case *format.IntType:
			if !l.IsSigned && l.BitWidth == 64 {
				return func(v *parquet.Value) Cell {
					if v.Int64() < 0 {
						return Text(strconv.AppendUint(nil, v.Uint64(), 10))
					}
					return Integer(v.Int64())
				}, nil
			}
			if !l.IsSigned && t.Kind() == parquet.Int32 {
				return func(v *parquet.Value) Cell { return Integer(int64(v.Uint32())) }, nil
			}
		case *format.TimeType:
			return nil, errors.New("it contains times of day; want a date and time")
		}
	}
	switch t.Kind() {
	case parquet.Boolean:
		return func(v *parquet.Value) Cell {
			if v.Boolean() {
				return Integer(1)
			}
			return Integer(0)
		}, nil
	case parquet.Int32:
		return func(v *parquet.Value) Cell { return Integer(int64(v.Int32())) }, nil
	case parquet.Int64:
		return func(v *parquet.Value) Cell { return Integer(v.Int64()) }, nil
	case parquet.Float:
		return func(v *parquet.Value) Cell { return Number(float64(v.Float())) }, nil
	case parquet.Double:
		return func(v *parquet.Value) Cell { return Number(v.Double()) }, nil
	case parquet.Int96:
		return func(v *parquet.Value) Cell {
			// Older writers store times as a Julian day and the nanoseconds within the day,
			// without a zone.
			x := v.Int96()
			nanos := int64(x[1])<<32 | int64(x[0])
			day := int64(x[2]) - 2440588
			return Time(day*86400+nanos/1e9, true, nanos%1e9 != 0)
		}, nil
	}
	return func(v *parquet.Value) Cell { return Text(v.ByteArray()) }, nil
}

// timestamp returns the converter for timestamps with the given number of units per
// second.
func timestamp(perSecond int64, local bool) func(*parquet.Value) Cell {
	return func(v *parquet.Value) Cell {
		s, rest := v.Int64()/perSecond, v.Int64()%perSecond
		if rest < 0 {
			s--
		}
		return Time(s, local, rest != 0)
	}
}

// decimal returns the converter for decimals, which are stored as scaled integers.
func decimal(kind parquet.Kind, scale int) (func(*parquet.Value) Cell, error) {
	if scale < 0 || scale > 60 {
		return nil, fmt.Errorf("it has %d decimal places; want 0 to 60", scale)
	}
	unit := math.Pow10(scale)
	switch kind {
	case parquet.Int32:
		return func(v *parquet.Value) Cell { return Number(float64(v.Int32()) / unit) }, nil
	case parquet.Int64:
		return func(v *parquet.Value) Cell { return Number(float64(v.Int64()) / unit) }, nil
	}
	return func(v *parquet.Value) Cell {
		// The bytes are a big-endian number in two's complement.
		b := v.ByteArray()
		x := new(big.Int).SetBytes(b)
		if len(b) > 0 && b[0] >= 0x80 {
			x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		n, _ := new(big.Float).SetInt(x).Float64()
		return Number(n / unit)
	}, nil
}
