package readings

import (
	"cmp"
	"io"
	"slices"
	"time"

	"loadstar/series/openmeteo"
	"loadstar/series/store"
)

// RefusedRow is a row of a document that was not stored.
type RefusedRow struct {
	Row    int    `json:"row"` // counted from 1, without the heading
	Reason string `json:"reason"`
}

// Answer counts the stored and refused rows of a document.
type Answer struct {
	Accepted  int `json:"accepted"`
	Corrected int `json:"corrected"`
	Unchanged int `json:"unchanged"`
	// Bad counts the rows that are stored but not used, because they are far beyond their
	// client's scale. The counts above include them.
	Bad     int          `json:"bad"`
	Refused []RefusedRow `json:"refused"`
	// MoreRefused counts the refused rows that are not listed.
	MoreRefused int `json:"more_refused,omitempty"`
}

const maxListed = 1000

func (a *Answer) stored() int { return a.Accepted + a.Corrected + a.Unchanged }

func (a *Answer) refuse(rows ...RefusedRow) {
	n := min(len(rows), maxListed-len(a.Refused))
	a.Refused = append(a.Refused, rows[:n]...)
	a.MoreRefused += len(rows) - n
}

func (a *Answer) finish() Answer {
	slices.SortStableFunc(a.Refused, func(x, y RefusedRow) int { return cmp.Compare(x.Row, y.Row) })
	if a.Refused == nil {
		a.Refused = []RefusedRow{}
	}
	return *a
}

// document stores the rows of a document.
type document struct {
	i       *Intake
	source  string
	now     time.Time
	clients map[string]Client
	once    map[string][]uint64 // the steps that a file has contained, by client; nil for a stream
	answer  Answer

	readings []store.Reading
	rows     []int
}

func (i *Intake) document(source string) (*document, *rowReader) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return &document{i: i, source: source, now: i.c.Now(), clients: i.clients}, newRowReader(i.c.Zone, i.clients)
}

// add takes one row.
func (d *document) add(row int, r store.Reading, why string) error {
	if d.once == nil && row > maxDocumentRows {
		return &syntaxError{row, errRows}
	}
	if why == "" && d.once != nil && r.Revision == 0 && !d.first(r) {
		why = repeated
	}
	if why != "" {
		d.answer.refuse(RefusedRow{row, why})
		d.i.stats.add(d.source, "refused", 1)
		return nil
	}
	d.readings = append(d.readings, r)
	d.rows = append(d.rows, row)
	return nil
}

// first reports whether a file has had no earlier row for a reading's step. A file has no
// order of arrival, so the first row of a step is kept.
func (d *document) first(r store.Reading) bool {
	step := int64(d.i.c.Interval / time.Second)
	begin := d.now.Add(-maxAge).Unix()/step - 1
	n := r.Time/step - begin
	if n < 0 || r.Time%step != 0 || r.Time > d.now.Add(maxAhead).Unix() {
		return true // the store will refuse it
	}
	bits := d.once[r.Client]
	if int(n/64) >= len(bits) {
		bits = append(bits, make([]uint64, int(n/64)+1-len(bits))...)
		d.once[r.Client] = bits
	}
	if bits[n/64]&(1<<(n%64)) != 0 {
		return false
	}
	bits[n/64] |= 1 << (n % 64)
	return true
}

// store stores the rows so far in one transaction.
func (d *document) store(notes map[string][]byte) error {
	if notes == nil {
		notes = map[string][]byte{}
	}
	bad, err := d.i.bounds.judge(d.readings, d.clients, d.now, notes)
	if err != nil {
		return err
	}
	result, err := d.i.c.Store.Put(d.now, d.readings, notes)
	if err != nil {
		return err
	}
	n := len(bad)
	for _, r := range result.Refused {
		if slices.Contains(bad, r.Index) {
			n--
		}
	}
	named := map[string]bool{}
	for _, r := range d.readings {
		if named[r.Client] {
			continue
		}
		named[r.Client] = true
		late, err := d.i.bounds.late(r.Client, d.clients[r.Client], d.now)
		if err != nil {
			return err
		}
		n += late
	}
	d.answer.Bad += n
	d.i.stats.add(d.source, "bad", n)
	d.count(result, d.rows)
	d.readings, d.rows = d.readings[:0], d.rows[:0]
	return nil
}

func (d *document) count(result store.Result, rows []int) {
	d.i.stats.result(d.source, result)
	d.answer.Accepted += result.Accepted
	d.answer.Corrected += result.Corrected
	d.answer.Unchanged += result.Unchanged
	for _, r := range result.Refused {
		d.answer.refuse(RefusedRow{rows[r.Index], string(r.Reason)})
	}
}

// take stores all readings of a stream in one transaction.
func (i *Intake) take(source string, r io.Reader, asJSON bool) (Answer, error) {
	if err := i.c.Clock(); err != nil {
		return Answer{}, err
	}
	d, p := i.document(source)
	read := p.readCSV
	if asJSON {
		read = p.readJSON
	}
	if err := read(r, d.add); err != nil {
		return Answer{}, err
	}
	if err := d.store(nil); err != nil {
		return Answer{}, err
	}
	return d.answer.finish(), nil
}

// takeWeather stores the weather of a document: CSV, JSON, or a response of Open-Meteo.
func (i *Intake) takeWeather(source string, r io.Reader, asJSON bool) (Answer, error) {
	if err := i.c.Clock(); err != nil {
		return Answer{}, err
	}
	d, p := i.document(source)
	read := p.readWeatherCSV
	if asJSON {
		read = p.readWeatherJSON
	}
	w, err := read(r, d.now.Unix())
	if err != nil {
		return Answer{}, err
	}
	return d.storeWeather(w)
}

// TakeHours stores the weather in a service's response.
func (i *Intake) TakeHours(h *openmeteo.Hours) (Answer, error) {
	if err := i.c.Clock(); err != nil {
		return Answer{}, err
	}
	d, _ := i.document("service")
	return d.storeWeather(hoursOf(h, d.now.Unix()))
}

func (d *document) storeWeather(w *weatherRows) (Answer, error) {
	result, err := d.i.c.Store.PutWeather(d.now, w.names, w.rows)
	if err != nil {
		return Answer{}, err
	}
	d.i.stats.add(d.source, "refused", len(w.refused))
	d.answer.refuse(w.refused...)
	d.count(result, w.numbers)
	return d.answer.finish(), nil
}
