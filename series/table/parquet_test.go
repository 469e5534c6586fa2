package table

import (
	"bytes"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/uncompressed"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// TestClaims checks that a wrong size in the metadata cannot cause a large allocation.
func TestClaims(t *testing.T) {
	type flat struct {
		ID string `parquet:"meter_id"`
	}
	var b bytes.Buffer
	w := parquet.NewGenericWriter[flat](&b, parquet.Compression(&uncompressed.Codec{}))
	if _, err := w.Write([]flat{{"a"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	in, err := OpenParquet(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	in.(*file).file.Metadata().RowGroups[0].Columns[0].MetaData.TotalCompressedSize = 1 << 40
	err = in.Each([]int{0}, func([]Cell) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "the file is truncated") {
		t.Error(err)
	}
}

// A small file whose pages would take hundreds of megabytes is refused before they are decoded.
func TestLargePages(t *testing.T) {
	type row struct {
		Time int64   `parquet:"timestamp"`
		Load float64 `parquet:"load_kw"`
	}
	file := func(rows int) []byte {
		var b bytes.Buffer
		w := parquet.NewGenericWriter[row](&b, parquet.Compression(&zstd.Codec{}), parquet.PageBufferSize(500<<20), parquet.WriteBufferSize(0))
		part := make([]row, 10_000)
		for i := 0; i < rows; i += len(part) {
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	read := func(data []byte) (rows int, err error) {
		in, err := OpenParquet(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		err = in.Each([]int{0, 1}, func([]Cell) error { rows++; return nil })
		return rows, err
	}
	// Each column alone fits, but both together do not.
	if rows, err := read(file(5_000_000)); err == nil || !strings.Contains(err.Error(), "smaller pages") || rows > 0 {
		t.Errorf("%d rows: %v", rows, err)
	}
	if rows, err := read(file(1_000_000)); err != nil || rows != 1_000_000 {
		t.Errorf("%d rows: %v", rows, err)
	}
}
