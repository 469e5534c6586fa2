package sqlstore

import (
	"encoding/json"
	"fmt"
	"strings"
)

// The functions in this file build one statement for each table and batch, because the cost of
// a statement depends little on its number of rows.

// AnyOf returns a condition that a column is in a list. The list is argument n and is created
// by List.
func (s *Store) AnyOf(n int) string {
	if s.SQLite {
		return fmt.Sprintf("IN (SELECT value FROM json_each($%d))", n)
	}
	return fmt.Sprintf("= ANY($%d)", n)
}

// List returns a list of strings or numbers as the argument of a statement.
func List[T string | int64](s *Store, values []T) any {
	if !s.SQLite {
		return values
	}
	text, _ := json.Marshal(values) // strings and numbers can always be encoded
	return string(text)
}

// MaxRows is the number of rows per INSERT statement.
const MaxRows = 1024

// InsertRows returns a statement that inserts rows, with its arguments. values contains the
// rows one after the other. types are the types of the columns in PostgreSQL. For PostgreSQL,
// there is one list per column, so that the statement is prepared only once for any number of
// rows. SQLite gets the values themselves, because it would read numbers from a list inexactly.
func (s *Store) InsertRows(into string, types []string, values []any) (text string, args []any) {
	n := len(types)
	if s.SQLite {
		row := "(" + strings.Repeat("?,", n-1) + "?)"
		return into + " VALUES " + strings.Repeat(row+",", len(values)/n-1) + row, values
	}
	lists := make([]string, n)
	for i, kind := range types {
		lists[i] = fmt.Sprintf("$%d::%s[]", i+1, kind)
		args = append(args, column(values[i:], n, kind))
	}
	return into + " SELECT * FROM unnest(" + strings.Join(lists, ", ") + ")", args
}

// column returns every n-th value as a list.
func column(values []any, n int, kind string) any {
	switch kind {
	case "bigint":
		return each[int64](values, n)
	case "float8":
		return each[float64](values, n)
	}
	return each[string](values, n)
}

func each[T any](values []any, n int) (list []T) {
	for i := 0; i < len(values); i += n {
		list = append(list, values[i].(T))
	}
	return list
}
