package read

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/encoding/charmap"

	"loadstar/series"
	"loadstar/series/table"
)

// entries calls each for every Atom entry of a file, with the entry's number.
func (f *feeds) entries(file int, each func(d *xml.Decoder, entry int, start *xml.StartElement) error) error {
	in, err := f.files[file].open()
	if err != nil {
		return err
	}
	defer in.Close()
	if err := eachEntry(in, each); err != nil {
		return fmt.Errorf("%s: %w", f.files[file].name, err)
	}
	return nil
}

func eachEntry(in io.Reader, each func(d *xml.Decoder, entry int, start *xml.StartElement) error) error {
	r, err := table.Unpack(in)
	if err != nil {
		return err
	}
	text, err := table.Decode(r, "")
	if err != nil {
		return err
	}
	d := xml.NewDecoder(text)
	d.CharsetReader = charset
	for entry, any := 0, false; ; {
		token, err := d.Token()
		if err == io.EOF {
			if !any {
				return errors.New("the file contains no XML")
			}
			return nil
		}
		if err != nil {
			return explainXML(err)
		}
		start, ok := token.(xml.StartElement)
		any = any || ok
		if !ok || start.Name.Local != "entry" {
			continue
		}
		if err := each(d, entry, &start); err != nil {
			line, _ := d.InputPos()
			return fmt.Errorf("line %d: %w", line, explainXML(err))
		}
		entry++
	}
}

func explainXML(err error) error {
	if syntax := (*xml.SyntaxError)(nil); errors.As(err, &syntax) && syntax.Msg == "unexpected EOF" {
		return table.CutOff(io.ErrUnexpectedEOF)
	}
	return table.CutOff(err)
}

// charset returns a reader that decodes one of the encodings other than UTF-8 that
// utilities use.
func charset(name string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(name) {
	case "us-ascii", "ascii", "utf-16", "utf-16le", "utf-16be":
		return r, nil // UTF-16 was already decoded because of its byte-order mark
	case "iso-8859-1", "latin1":
		return charmap.ISO8859_1.NewDecoder().Reader(r), nil
	case "windows-1252", "cp1252":
		return charmap.Windows1252.NewDecoder().Reader(r), nil
	}
	return nil, fmt.Errorf("the file's encoding is %s, which is not supported; save it as UTF-8", name)
}

// read goes through the files a second time and reads the readings of the meters.
func (f *feeds) read(meters []*espiMeter, out *Import, emit func(series.Meter, []string) error) error {
	wanted := map[*espiReading]*espiMeter{}
	for _, m := range meters {
		for _, r := range m.readings {
			wanted[r] = m
		}
	}
	builder := series.NewBuilder(out.Interval)
	titles := map[string]string{}
	tally := espiTally{}
	for file := range f.files {
		blocks := map[int]*espiReading{} // by entry number
		for _, b := range f.blocks {
			if b.file == file && wanted[b.reading] != nil {
				blocks[b.entry] = b.reading
			}
		}
		if len(blocks) == 0 {
			continue
		}
		err := f.entries(file, func(d *xml.Decoder, entry int, start *xml.StartElement) error {
			reading := blocks[entry]
			if reading == nil {
				return d.Skip()
			}
			point := wanted[reading].point
			titles[point.id] = point.title
			r := blockReader{
				out: builder.Meter(point.id), interval: int64(out.Interval / time.Second),
				scale: reading.kind.kilowatts(out.Interval), tally: &tally,
			}
			return r.read(d)
		})
		if err != nil {
			return err
		}
	}
	tally.report(out)
	all, err := builder.Meters()
	if err == nil && len(all) == 0 {
		err = errors.New("these files contain no readings")
	}
	if err != nil {
		return err
	}
	for _, m := range all {
		m.Static = []float32{}
		if err := emit(m, []string{titles[m.ID]}); err != nil {
			return err
		}
	}
	return nil
}

// espiTally counts all readings of a meter, the readings whose duration differs from the
// interval, and the readings that were estimated or are otherwise doubtful.
type espiTally struct{ all, length, doubtful int }

func (t *espiTally) report(out *Import) {
	if t.length > 0 {
		out.note("left out %d of %d readings because their duration is not %s", t.length, t.all, out.Interval)
	}
	if t.doubtful > 0 {
		out.note("%d of %d readings are marked as estimated, questionable or projected; they were imported", t.doubtful, t.all)
	}
}

// blockReader adds the readings of interval blocks to a meter's series.
type blockReader struct {
	out      *series.MeterBuilder
	interval int64 // seconds
	scale    float64
	tally    *espiTally
}

// read reads the interval blocks that follow in an entry.
func (r *blockReader) read(d *xml.Decoder) error {
	// A reading without a period starts where the previous one ended. The first reading
	// starts with its block.
	next := int64(math.MinInt64)
	for depth := 1; depth > 0; {
		token, err := d.Token()
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.EndElement:
			depth--
		case xml.StartElement:
			switch t.Name.Local {
			case "interval":
				var p espiPeriod
				if err := d.DecodeElement(&p, &t); err != nil {
					return err
				}
				if p.Start != nil {
					next = *p.Start
				}
			case "IntervalReading":
				var v espiIntervalReading
				if err := d.DecodeElement(&v, &t); err != nil {
					return err
				}
				if next, err = r.add(&v, next); err != nil {
					return err
				}
			default:
				depth++
			}
		}
	}
	return nil
}

// add adds a reading to the series and returns its end. The reading starts at next unless
// it has its own start.
func (r *blockReader) add(v *espiIntervalReading, next int64) (int64, error) {
	start, duration := next, r.interval
	if v.Period.Start != nil {
		start = *v.Period.Start
	}
	if v.Period.Duration != nil {
		duration = *v.Period.Duration
	}
	if start < 0 || start > 1<<40 || duration < 0 || duration > 1<<32 {
		return 0, fmt.Errorf("a reading has no start or an impossible period: it starts at %d and lasts %d s", start, duration)
	}
	next = start + duration
	r.tally.all++
	if duration != r.interval {
		r.tally.length++
		return next, nil
	}
	kw := math.NaN()
	if text := strings.TrimSpace(v.Value); text != "" {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(value, 0) || value != value {
			return 0, fmt.Errorf("value %q is not a number", table.Clip([]byte(text)))
		}
		kw = value * r.scale
	}
	// The ESPI quality codes 8 and 9 mean estimated, 10 means questionable, 12 projected and 13
	// mixed.
	if slices.ContainsFunc(v.Qualities, func(q int) bool { return slices.Contains([]int{8, 9, 10, 12, 13}, q) }) {
		r.tally.doubtful++
	}
	if err := r.out.Add(series.Instant{Unix: start}, kw); err != nil {
		return 0, fmt.Errorf("a reading %w", err)
	}
	return next, nil
}
