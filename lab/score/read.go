package score

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/series"
	"loadstar/series/table"
)

// maxRows limits the memory for forecasts: a row takes 16 bytes, and 8 bytes for each of its
// values.
const maxRows = 50_000_000

// key identifies a forecast by its target and its cutoff.
type key struct{ cutoff, at int64 }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.cutoff, o.cutoff), cmp.Compare(k.at, o.at))
}

// rows are the forecasts of a client. The values of row i are values[i*columns:][:columns].
type rows struct {
	keys   []key
	values []float64
}

// method is a forecast with a name. It contains the column of the point forecast and the
// columns of its interval bounds, which are -1 if there is no interval.
type method struct {
	name             string
	point, low, high int
	level            float64 // share of loads that should be in the interval
}

// Forecasts are the forecasts of one or several methods.
type Forecasts struct {
	name    string
	methods []method
	columns int
	clients map[string]*rows
	y       int // column of the loads in the file, or -1
	// ends means that cutoffs are the ends of the newest known intervals. Otherwise, they were
	// the starts of these intervals, as in the files of Nixtla's libraries, and have been moved
	// to the ends.
	ends bool
	zone bool // times had no offset, and are taken as local times
}

// interval matches the names of interval bounds: model-lo-80, model-hi-80, model-P10.
var interval = regexp.MustCompile(`^(.*?)[-_]?(?:(lo|hi)-([0-9.]+)|P([0-9.]+))$`)

// Read reads a CSV or Parquet file with the columns unique_id, cutoff, ds, and one or several
// forecasts. A column y, if there is one, contains the loads that the file's author used. The
// names of interval bounds end with -lo-80 and -hi-80, or with P10 and P90; P50 is then the
// forecast. Times without an offset are in the dataset's zone.
func Read(path string, d *series.Dataset) (*Forecasts, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var t table.Table
	if ext := strings.ToLower(filepath.Ext(path)); slices.Contains([]string{".xlsx", ".xls", ".ods"}, ext) {
		return nil, fmt.Errorf("%s: this is a spreadsheet; export it as CSV with decimal points, or write Parquet", path)
	}
	if strings.EqualFold(filepath.Ext(path), ".parquet") {
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		t, err = table.OpenParquet(file, info.Size())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	} else if t, err = table.OpenCSV(file, table.Format{}); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &Forecasts{name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), clients: map[string]*rows{}, y: -1}
	wanted, err := f.header(t.Columns())
	if err == nil {
		err = f.read(t, wanted, table.NewClock(d.Clock, 0, table.Dates{}))
	}
	if err == nil {
		err = f.settle(d.Seconds())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// header finds the columns. It returns the indexes of the columns to read: the client, the
// cutoff, the time, and then the values.
func (f *Forecasts) header(names []string) ([]int, error) {
	wanted := []int{-1, -1, -1}
	for i, name := range names {
		if k := slices.Index([]string{"unique_id", "cutoff", "ds"}, name); k >= 0 {
			wanted[k] = i
		}
	}
	for k, name := range []string{"unique_id", "cutoff", "ds"} {
		if wanted[k] < 0 {
			return nil, fmt.Errorf("there is no column %s; want unique_id (the client), cutoff (up to when the forecast knew the load), ds and a column for each forecast, as loadstar backtest --out and cross_validation of Nixtla's libraries write them; there are %s", name, strings.Join(names, ", "))
		}
	}
	type bound struct {
		column int
		level  float64
	}
	bounds := map[string][]bound{}
	for i, name := range names {
		if slices.Contains(wanted[:3], i) || name == "index" || name == "" {
			continue
		}
		column := len(wanted) - 3
		wanted = append(wanted, i)
		m := interval.FindStringSubmatch(name)
		switch {
		case name == "y":
			f.y = column
		case m == nil:
			f.methods = append(f.methods, method{name: name, point: column, low: -1, high: -1})
		default:
			level, err := strconv.ParseFloat(m[3]+m[4], 64)
			if err != nil || level <= 0 || level >= 100 {
				return nil, fmt.Errorf("column %s: the level is not between 0 and 100", name)
			}
			switch m[2] {
			case "lo":
				level = 50 - level/2
			case "hi":
				level = 50 + level/2
			}
			bounds[m[1]] = append(bounds[m[1]], bound{column, level})
		}
	}
	f.columns = len(wanted) - 3
	for _, name := range slices.Sorted(maps.Keys(bounds)) {
		all := bounds[name]
		slices.SortFunc(all, func(a, b bound) int { return cmp.Compare(a.level, b.level) })
		at := slices.IndexFunc(f.methods, func(m method) bool { return m.name == name })
		if at < 0 {
			middle := slices.IndexFunc(all, func(b bound) bool { return b.level == 50 })
			if middle < 0 {
				return nil, fmt.Errorf("there are bounds of intervals of %q, but no column with its forecast or its P50", name)
			}
			shown := cmp.Or(name, f.name)
			at, f.methods = len(f.methods), append(f.methods, method{name: shown, point: all[middle].column, low: -1, high: -1})
		}
		if low, high := all[0], all[len(all)-1]; math.Abs(low.level+high.level-100) < 1e-9 && low.level < 50 {
			m := &f.methods[at]
			m.low, m.high, m.level = low.column, high.column, (high.level-low.level)/100
		}
	}
	if len(f.methods) == 0 {
		return nil, errors.New("there is no column with a forecast in addition to unique_id, cutoff, ds and y")
	}
	return wanted, nil
}

func (f *Forecasts) read(t table.Table, wanted []int, clock *table.Clock) error {
	n := 0
	return t.Each(wanted, func(cells []table.Cell) error {
		if n++; n > maxRows {
			return fmt.Errorf("there are more than %d rows; give the clients in several files", maxRows)
		}
		client := f.clients[string(cells[0].Name())]
		if client == nil {
			client = &rows{}
			f.clients[string(cells[0].Name())] = client
		}
		f.zone = f.zone || !cells[2].Zoned()
		cutoff, err := clock.Instant(&cells[1])
		if err != nil {
			return fmt.Errorf("cutoff: %w", err)
		}
		at, err := clock.Instant(&cells[2])
		if err != nil {
			return fmt.Errorf("ds: %w", err)
		}
		// In autumn, the local times of one hour occur twice.
		if n := len(client.keys); at.Again != 0 && n > 0 && client.keys[n-1].at >= at.Unix && client.keys[n-1].at < at.Again {
			at.Unix = at.Again
		}
		client.keys = append(client.keys, key{cutoff.Unix, at.Unix})
		for i := range cells[3:] {
			v := math.NaN()
			if c := &cells[3+i]; !c.IsEmpty() {
				if v, err = c.Value(); err != nil {
					return fmt.Errorf("column %s: %q is not a number; forecasts are written with a decimal point", t.Columns()[wanted[3+i]], table.Clip(c.Name()))
				}
			}
			client.values = append(client.values, v)
		}
		return nil
	})
}

// settle sorts the rows, rejects repeated rows and forecasts of known loads, and detects the
// meaning of cutoffs.
func (f *Forecasts) settle(step int64) error {
	least, leaks, first := int64(math.MaxInt64), 0, ""
	for _, name := range slices.Sorted(maps.Keys(f.clients)) {
		for _, k := range f.clients[name].keys {
			if k.at < k.cutoff {
				if leaks++; first == "" {
					first = fmt.Sprintf("client %s, ds %s, cutoff %s", name, stamp(k.at), stamp(k.cutoff))
				}
			}
			least = min(least, k.at-k.cutoff)
		}
	}
	if leaks > 0 {
		return fmt.Errorf("%d rows forecast loads that were already known, because their cutoff is after ds (%s); remove them, or correct the columns", leaks, first)
	}
	if f.ends = least < step; !f.ends {
		for _, r := range f.clients {
			for i := range r.keys {
				r.keys[i].cutoff += step
			}
		}
	}
	for name, r := range f.clients {
		if err := r.sort(f.columns); err != nil {
			return fmt.Errorf("client %s: %w", name, err)
		}
	}
	return nil
}

func (r *rows) sort(columns int) error {
	order := make([]int, len(r.keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return r.keys[a].compare(r.keys[b]) })
	to := rows{keys: make([]key, 0, len(r.keys)), values: make([]float64, 0, len(r.values))}
	for n, i := range order {
		if n > 0 && to.keys[n-1] == r.keys[i] {
			return fmt.Errorf("ds %s has two rows with the cutoff %s", stamp(r.keys[i].at), stamp(r.keys[i].cutoff))
		}
		to.keys, to.values = append(to.keys, r.keys[i]), append(to.values, r.values[i*columns:][:columns]...)
	}
	*r = to
	return nil
}

func (r *rows) find(k key) int {
	i, ok := slices.BinarySearchFunc(r.keys, k, key.compare)
	if !ok {
		return -1
	}
	return i
}

func stamp(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }
