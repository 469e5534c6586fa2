package table

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Format describes the format of a CSV file. The zero value means UTF-8, a header in the first
// line, a delimiter that is detected, and numbers with a decimal point.
type Format struct {
	// Encoding is one of Encodings, or empty for UTF-8. A byte-order mark takes precedence.
	Encoding string
	// Delimiter separates the fields of a line. It is a comma, a semicolon, a bar or a tab. If
	// it is 0, the delimiter is the most frequent of these characters in the header.
	Delimiter byte
	// Header is the name of a column. The header is the first line that contains it. If
	// Header is empty, the header is the first line.
	Header string
	// Skip is the number of lines between the header and the first row, such as one with
	// units.
	Skip int
	// Footer is the number of lines at the end that are not rows, such as totals.
	Footer int
	// Decimal is '.' or ','. Numbers may then have thousands separators. If it is 0, the
	// decimal separator is a point, and there are no thousands separators.
	Decimal byte
	// Sheet is the name of a sheet, if the file is a spreadsheet. If it is empty, the first sheet
	// with dates is read.
	Sheet string
}

// encodings maps the names of encodings to their decoders. UTF-8 needs no decoder.
var encodings = map[string]encoding.Encoding{
	"utf-8":        nil,
	"windows-1252": charmap.Windows1252,
	"utf-16le":     unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM),
	"utf-16be":     unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
}

// Encodings returns the names of the encodings that a Format may have.
func Encodings() []string { return []string{"utf-8", "windows-1252", "utf-16le", "utf-16be"} }

// Check returns an error if the format has a value that is not allowed.
func (f Format) Check() error {
	if _, ok := encodings[f.Encoding]; !ok && f.Encoding != "" {
		return fmt.Errorf("encoding is %q; it must be one of %s", f.Encoding, strings.Join(Encodings(), ", "))
	}
	if f.Delimiter != 0 && !slices.Contains([]byte(delimiters), f.Delimiter) {
		return fmt.Errorf("delimiter is %q; it must be a comma, a semicolon, a bar or a tab", f.Delimiter)
	}
	if f.Decimal != 0 && f.Decimal != '.' && f.Decimal != ',' {
		return fmt.Errorf("decimal is %q; it must be a point or a comma", f.Decimal)
	}
	if f.Skip < 0 || f.Skip > maxSkip {
		return fmt.Errorf("skip is %d; it must be from 0 to %d", f.Skip, maxSkip)
	}
	if f.Footer < 0 || f.Footer > MaxFooter {
		return fmt.Errorf("footer is %d; it must be from 0 to %d", f.Footer, MaxFooter)
	}
	return nil
}

// MaxFooter limits the number of lines at the end that are not rows.
const MaxFooter = 20

// maxSkip limits the number of lines between the header and the first row.
const maxSkip = 20

// Unpack decompresses gzip.
func Unpack(r io.Reader) (*bufio.Reader, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		gz, err := gzip.NewReader(b)
		if err != nil {
			return nil, CutOff(err)
		}
		b = bufio.NewReaderSize(gz, 1<<16)
	}
	return b, nil
}

// marks are the byte-order marks and their encodings.
var marks = []struct{ bytes, encoding string }{
	{"\xef\xbb\xbf", "utf-8"}, {"\xff\xfe", "utf-16le"}, {"\xfe\xff", "utf-16be"},
}

// Mark returns the encoding and the length of the byte-order mark at the start of a text, or an
// empty string and 0 if there is no mark.
func Mark(text []byte) (encoding string, length int) {
	for _, m := range marks {
		if bytes.HasPrefix(text, []byte(m.bytes)) {
			return m.encoding, len(m.bytes)
		}
	}
	return "", 0
}

// Decode returns a reader that converts a text to UTF-8 and removes a byte-order mark.
func Decode(b *bufio.Reader, encoding string) (io.Reader, error) {
	start, err := b.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, CutOff(err)
	}
	if name, n := Mark(start); n > 0 {
		encoding = name
		if _, err := b.Discard(n); err != nil {
			return nil, err
		}
	}
	if e := encodings[encoding]; e != nil {
		return transform.NewReader(b, e.NewDecoder()), nil
	}
	return b, nil
}

// CutOff replaces the error for an unexpected end of file with an error that explains the
// cause.
func CutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the file is truncated (%w); was it copied completely?", io.ErrUnexpectedEOF)
	}
	return err
}
