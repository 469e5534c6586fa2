package parquet

import (
	"bytes"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/uncompressed"

	"loadstar/series/table"
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
	in, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	in.(*file).file.Metadata().RowGroups[0].Columns[0].MetaData.TotalCompressedSize = 1 << 40
	err = in.Each([]int{0}, func([]table.Cell) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "the file is truncated") {
		t.Error(err)
	}
}
