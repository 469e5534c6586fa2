package table

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/xuri/excelize/v2"
)

// styles holds the styles of the numbers in a sheet: the style of each cell in the first rows
// and, for all other rows, the most frequent of these styles in the column. Excelize would
// parse the whole sheet into memory to look up a style.
type styles struct {
	first map[[2]int]int // by column and row
	usual map[int]int    // by column
}

// of returns the style of a cell.
func (s *styles) of(column, row int) int {
	if row <= looked {
		return s.first[[2]int{column, row}]
	}
	return s.usual[column]
}

// summarize finds the most frequent style of each column. Of equally frequent styles, it takes
// the one with the lowest number.
func (s *styles) summarize() {
	counts := map[int]map[int]int{}
	for at, id := range s.first {
		if counts[at[0]] == nil {
			counts[at[0]] = map[int]int{}
		}
		counts[at[0]][id]++
	}
	for column, n := range counts {
		best := -1
		for id := range n {
			if best < 0 || n[id] > n[best] || n[id] == n[best] && id < best {
				best = id
			}
		}
		s.usual[column] = best
	}
}

// readStyles reads the styles of the first rows of a sheet.
func readStyles(parts *zip.Reader, sheet string) (*styles, error) {
	name, err := partOf(parts, sheet)
	if err != nil {
		return nil, err
	}
	f, err := parts.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", errNot, err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	all := &styles{first: map[[2]int]int{}, usual: map[int]int{}}
	defer all.summarize()
	d := xml.NewDecoder(io.LimitReader(f, maxUnpacked))
	row, column, style := 0, 0, -1
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("sheet %q: %w", sheet, err)
		}
		e, ok := t.(xml.StartElement)
		if !ok {
			continue
		}
		switch e.Name.Local {
		case "row":
			row, column = row+1, 0
			if n, err := strconv.Atoi(attribute(e, "r")); err == nil {
				row = n
			}
			if row > looked {
				return all, nil
			}
		case "c":
			column++
			if c, _, err := excelize.CellNameToCoordinates(attribute(e, "r")); err == nil {
				column = c
			}
			style = -1
			if kind := attribute(e, "t"); kind == "" || kind == "n" { // other cells are text
				style, _ = strconv.Atoi(attribute(e, "s")) // a cell without a style has style 0
			}
		case "v": // cells without a value may have any style
			if style >= 0 {
				all.first[[2]int{column, row}] = style
			}
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// partOf returns the name of the file that contains a sheet.
func partOf(parts *zip.Reader, sheet string) (string, error) {
	const workbook = "xl/workbook.xml"
	var book struct {
		Sheets []struct {
			Name string `xml:"name,attr"`
			ID   string `xml:"id,attr"`
		} `xml:"sheets>sheet"`
	}
	var links struct {
		Links []struct {
			ID     string `xml:"Id,attr"`
			Target string `xml:"Target,attr"`
		} `xml:"Relationship"`
	}
	if err := errors.Join(decode(parts, workbook, &book), decode(parts, "xl/_rels/workbook.xml.rels", &links)); err != nil {
		return "", err
	}
	for _, s := range book.Sheets {
		for _, l := range links.Links {
			if s.Name == sheet && s.ID == l.ID {
				if strings.HasPrefix(l.Target, "/") {
					return l.Target[1:], nil
				}
				return path.Join(path.Dir(workbook), l.Target), nil
			}
		}
	}
	return "", fmt.Errorf("%w (sheet %q has no content)", errNot, sheet)
}

func decode(parts *zip.Reader, name string, into any) error {
	f, err := parts.Open(name)
	if err != nil {
		return fmt.Errorf("%w (%v)", errNot, err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	if err := xml.NewDecoder(io.LimitReader(f, maxUnpacked)).Decode(into); err != nil {
		return fmt.Errorf("%w (%s: %v)", errNot, name, err)
	}
	return nil
}
