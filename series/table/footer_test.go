package table

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestFooter checks that the lines of a footer are left out, that errors have the right line
// number, and that a footer with a date is refused.
func TestFooter(t *testing.T) {
	read := func(text string, footer int) (rows []string, err error) {
		c, err := OpenCSV(strings.NewReader(text), Format{Footer: footer, Delimiter: ';'})
		if err != nil {
			return nil, err
		}
		err = c.Each([]int{0, 1}, func(cells []Cell) error {
			v, err := cells[1].Value()
			rows = append(rows, fmt.Sprintf("%s=%g", cells[0].Name(), v))
			return err
		})
		return rows, err
	}
	const text = "t;v\n2024-03-01;1\n\n2024-03-02;2\nSum;3\n\nno guarantee\n\n"
	if rows, err := read(text, 2); err != nil || strings.Join(rows, " ") != "2024-03-01=1 2024-03-02=2" {
		t.Error(rows, err)
	}
	if _, err := read(strings.Replace(text, ";2", ";x", 1), 2); err == nil || !strings.Contains(err.Error(), "line 4") {
		t.Error(err)
	}
	for _, rows := range []string{"t;v\n2024-03-01;1\n2024-03-03;3\n", "t;v\n01.03.2024;1\n03.03.2024;3\n", "t;v\n20240301;1\n20240303;3\n", "m;v;t\nx;1;2024-03-01\nx;3;2024-03-03 12:00\n", "t;v\n\n2024-03-03;3\n"} {
		if _, err := read(rows+"Sum;3\n", 2); err == nil || !strings.Contains(err.Error(), "line 3 has a date") {
			t.Errorf("%q: %v", rows, err)
		}
	}
	if rows, err := read("t;v\n2024-03-01;1\ncreated;2024-04-01\n", 1); err != nil || strings.Join(rows, " ") != "2024-03-01=1" {
		t.Error(rows, err)
	}
	if rows, err := read("t;v\nSum;3\n", 5); err != nil || rows != nil {
		t.Error(rows, err)
	}
	if _, err := OpenCSV(strings.NewReader(text), Format{Footer: MaxFooter + 1}); err == nil || err == io.EOF {
		t.Error(err)
	}
}
