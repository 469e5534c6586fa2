package read

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/series"
)

// GreenButton opens what utilities call Green Button data: ESPI resources in Atom
// feeds (NAESB REQ.21). Times in it are Unix times, so that the zone is needed for
// the clock that people live by only.
type GreenButton struct {
	// Zone is where the meters are. The files know its offset alone.
	Zone string
	// Interval picks the meters that are read so often; 0 is for all, which must
	// then be the same.
	Interval time.Duration
}

// Open looks through the feeds in a folder.
func (g GreenButton) Open(dir string) (*Import, error) {
	paths, err := folder(dir, ".xml", ".xml.gz")
	if err != nil {
		return nil, err
	}
	var files []source
	for _, p := range paths {
		files = append(files, fileSource(p))
	}
	return g.open(files)
}

func (g GreenButton) open(files []source) (*Import, error) {
	f := feeds{files: files}
	for i := range files {
		if err := f.survey(i); err != nil {
			return nil, err
		}
	}
	if err := g.checkZone(f.local); err != nil {
		return nil, err
	}
	out := &Import{
		About: "Green Button data (ESPI)", Zone: g.Zone,
		LabelNames: []string{"name"},
	}
	if err := f.tie(); err != nil {
		return nil, err
	}
	if len(f.renamed) > 0 {
		out.note("%s comes under several ids and was taken for one meter; if they are several, import them one by one", shorten(slices.Compact(f.renamed), 3))
	}
	meters, err := f.choose(out)
	if err != nil {
		return nil, err
	}
	if meters, err = g.pick(meters, out); err != nil {
		return nil, err
	}
	out.Meters = len(meters)
	out.each = func(emit func(series.Meter, []string) error) error { return f.read(meters, out, emit) }
	return out, nil
}

// checkZone compares the zone with what the files say of local time.
func (g GreenButton) checkZone(local []espiLocalTime) error {
	zone, err := loadZone(g.Zone)
	if g.Zone == "" {
		err = errors.New("the zone of the meters is missing: give it, such as America/New_York")
		if len(local) > 0 {
			err = fmt.Errorf("%w (the files say %s)", err, local[0])
		}
	}
	if err != nil {
		return err
	}
	_, standard := time.Unix(0, 0).In(series.StandardTime(zone)).Zone()
	for _, l := range local {
		if l.Offset != standard {
			return fmt.Errorf("zone %s is %s without daylight saving, but the files say %s", g.Zone, offsetName(standard), l)
		}
	}
	return nil
}

// pick returns the meters with one interval, which becomes that of the import.
func (g GreenButton) pick(meters []*espiMeter, out *Import) ([]*espiMeter, error) {
	count := map[time.Duration]int{}
	for _, m := range meters {
		count[m.interval]++
	}
	var found []string
	for _, v := range slices.Sorted(maps.Keys(count)) {
		found = append(found, fmt.Sprintf("%s (%d)", v, count[v]))
	}
	if out.Interval = g.Interval; out.Interval == 0 {
		if len(count) > 1 {
			return nil, fmt.Errorf("the meters have intervals of %s; say which to take", strings.Join(found, ", "))
		}
		out.Interval = meters[0].interval
	}
	if out.Interval < time.Second || 24*time.Hour%out.Interval != 0 {
		return nil, fmt.Errorf("an interval of %s does not divide a day", out.Interval)
	}
	kept := slices.DeleteFunc(slices.Clone(meters), func(m *espiMeter) bool { return m.interval != out.Interval })
	if len(kept) == 0 {
		return nil, fmt.Errorf("no meter has an interval of %s; there are %s", out.Interval, strings.Join(found, ", "))
	}
	if n := len(meters) - len(kept); n > 0 {
		out.note("left out %d of %d meters, whose interval is not %s", n, len(meters), out.Interval)
	}
	return kept, nil
}

// An Atom entry, with the ESPI resource in it. Links tie resources together.
type espiEntry struct {
	ID    string `xml:"id"`
	Title string `xml:"title"`
	Links []struct {
		Rel  string `xml:"rel,attr"`
		Href string `xml:"href,attr"`
	} `xml:"link"`
	Content struct {
		UsagePoint *struct {
			Kind *int `xml:"ServiceCategory>kind"`
		} `xml:"UsagePoint"`
		MeterReading *struct{}        `xml:"MeterReading"`
		ReadingType  *espiReadingType `xml:"ReadingType"`
		LocalTime    *espiLocalTime   `xml:"LocalTimeParameters"`
		Blocks       []struct {
			// The last reading's stands for all.
			Duration int64 `xml:"IntervalReading>timePeriod>duration"`
		} `xml:"IntervalBlock"`
	} `xml:"content"`
}

// links returns where the entry's links of a kind lead.
func (e *espiEntry) links(rel string) (hrefs []string) {
	for _, l := range e.Links {
		if href := strings.TrimRight(strings.TrimSpace(l.Href), "/"); l.Rel == rel && href != "" {
			hrefs = append(hrefs, href)
		}
	}
	return hrefs
}

type espiLocalTime struct {
	Offset int `xml:"tzOffset"` // seconds, without daylight saving
	Saving int `xml:"dstOffset"`
}

func (l espiLocalTime) String() string {
	if l.Saving == 0 {
		return offsetName(l.Offset) + " without daylight saving"
	}
	return fmt.Sprintf("%s, with daylight saving of %s in summer", offsetName(l.Offset), time.Duration(l.Saving)*time.Second)
}

// espiReadingType says what readings are. The numbers are ESPI's.
type espiReadingType struct {
	Accumulation int `xml:"accumulationBehaviour"`
	Commodity    int `xml:"commodity"`
	Qualifier    int `xml:"dataQualifier"`
	Flow         int `xml:"flowDirection"`
	Length       int `xml:"intervalLength"` // seconds
	PowerOfTen   int `xml:"powerOfTenMultiplier"`
	Unit         int `xml:"uom"`
}

// ESPI's numbers for what we can use, and what is common besides.
const (
	espiWatt     = 38
	espiWattHour = 72

	espiForward = 1
	espiNet     = 4
	espiReverse = 19

	espiDelta         = 4
	espiIndicating    = 6
	espiInstantaneous = 12

	espiAverage = 2
	espiNormal  = 12
)

// rank says how well readings of this type tell the load, 0 best, or why not.
func (t *espiReadingType) rank() (rank int, reason string) {
	if !slices.Contains([]int{0, 1, 2}, t.Commodity) {
		return 0, fmt.Sprintf("not electricity (commodity %d)", t.Commodity)
	}
	switch t.Unit {
	case espiWattHour:
		// Without a word about it, energy is that of the interval.
		if t.Accumulation != espiDelta && t.Accumulation != 0 {
			return 0, fmt.Sprintf("a register, not energy in intervals (accumulationBehaviour %d)", t.Accumulation)
		}
	case espiWatt:
		if !slices.Contains([]int{0, espiDelta, espiIndicating, espiInstantaneous}, t.Accumulation) || !slices.Contains([]int{0, espiAverage, espiNormal}, t.Qualifier) {
			return 0, fmt.Sprintf("not mean power (accumulationBehaviour %d, dataQualifier %d)", t.Accumulation, t.Qualifier)
		}
		rank = 2
	default:
		return 0, fmt.Sprintf("neither Wh nor W (uom %d)", t.Unit)
	}
	switch t.Flow {
	case 0, espiForward:
	case espiNet:
		rank++
	case espiReverse:
		return 0, "what was fed into the grid (flowDirection 19)"
	default:
		return 0, fmt.Sprintf("flowDirection %d", t.Flow)
	}
	if t.PowerOfTen < -12 || t.PowerOfTen > 12 {
		return 0, fmt.Sprintf("powerOfTenMultiplier %d", t.PowerOfTen)
	}
	return rank, ""
}

// kilowatts returns what to multiply a value with for kW.
func (t *espiReadingType) kilowatts(interval time.Duration) float64 {
	scale := math.Pow10(t.PowerOfTen - 3)
	if t.Unit == espiWattHour {
		scale /= interval.Hours()
	}
	return scale
}

// feeds are the resources of all files, but for the readings.
type feeds struct {
	files    []source
	types    index[*espiReadingType]
	readings index[*espiReading]
	points   index[*espiPoint]
	local    []espiLocalTime
	blocks   []espiBlock
	renamed  []string // usage points with several names
}

// resource is what entries have in common.
type resource struct {
	file    int
	key     string
	up      []string
	related []string
}

// index holds the resources of a kind. One that comes again, such as in the next
// month's file, is the first of its key.
type index[T any] struct {
	all    []T
	byKey  map[string]T
	byLink map[string]T
	byFile map[int]map[string]T
}

// add adds a resource, with the links under which others know it besides its key. It
// returns the first of that key.
func (x *index[T]) add(r resource, v T, links ...string) T {
	if x.byKey == nil {
		x.byKey, x.byLink, x.byFile = map[string]T{}, map[string]T{}, map[int]map[string]T{}
	}
	if x.byFile[r.file] == nil {
		x.byFile[r.file] = map[string]T{}
	}
	first, ok := x.byKey[r.key]
	if !ok {
		first = v
		x.all = append(x.all, v)
		x.byKey[r.key] = v
	}
	for _, href := range links {
		if _, ok := x.byLink[href]; !ok {
			x.byLink[href] = first
		}
	}
	x.byFile[r.file][r.key] = first
	return first
}

// find returns the resource that one of the links leads to, or else the only one of
// the file.
func (x *index[T]) find(file int, links []string) (v T, ok bool) {
	for _, m := range []map[string]T{x.byKey, x.byLink} {
		for _, href := range links {
			if v, ok := m[href]; ok {
				return v, true
			}
		}
	}
	if len(x.byFile[file]) == 1 {
		for _, v := range x.byFile[file] {
			return v, true
		}
	}
	return v, false
}

// espiReading is a MeterReading, and then what it belongs to.
type espiReading struct {
	resource
	kind      *espiReadingType
	point     *espiPoint
	durations map[int64]int // of blocks, by seconds
}

// espiPoint is a UsagePoint.
type espiPoint struct {
	id, title string
	service   int // 0 is electricity
}

// espiBlock is an entry with interval blocks, by its place in its file.
type espiBlock struct {
	resource
	entry     int
	durations []int64
	reading   *espiReading
}

// espiMeter is a usage point with the readings that are taken for its load.
type espiMeter struct {
	point    *espiPoint
	readings []*espiReading
	interval time.Duration
}

// entries calls f for every Atom entry of a file, by number.
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
	r, err := unpack(in)
	if err != nil {
		return err
	}
	d := xml.NewDecoder(r)
	d.CharsetReader = charset
	for entry, any := 0, false; ; {
		token, err := d.Token()
		if err == io.EOF {
			if !any {
				return errors.New("there is no XML in it")
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
		return cutOff(io.ErrUnexpectedEOF)
	}
	return cutOff(err)
}

// charset reads what XML files call themselves besides UTF-8.
func charset(name string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(name) {
	case "us-ascii", "ascii":
		return r, nil
	case "iso-8859-1", "latin1", "windows-1252":
		return latin1{r}, nil
	}
	return nil, fmt.Errorf("the file is in %s; save it as UTF-8", name)
}

// latin1 turns one byte for a character into UTF-8.
type latin1 struct{ r io.Reader }

func (l latin1) Read(p []byte) (int, error) {
	half := make([]byte, len(p)/2)
	n, err := l.r.Read(half)
	out := p[:0]
	for _, c := range half[:n] {
		out = append(out, string(rune(c))...)
	}
	return len(out), err
}

// survey notes the resources of a file, and passes over the readings.
func (f *feeds) survey(file int) error {
	return f.entries(file, func(d *xml.Decoder, entry int, start *xml.StartElement) error {
		var e espiEntry
		if err := d.DecodeElement(&e, start); err != nil {
			return err
		}
		r := resource{file: file, key: strings.TrimSpace(e.ID), up: e.links("up"), related: e.links("related")}
		if self := e.links("self"); len(self) > 0 {
			r.key = self[0]
		}
		if r.key == "" {
			r.key = fmt.Sprintf("%s, entry %d", f.files[file].name, entry)
		}
		c := &e.Content
		if c.UsagePoint != nil {
			p := &espiPoint{id: strings.TrimPrefix(strings.TrimSpace(e.ID), "urn:uuid:"), title: strings.TrimSpace(e.Title)}
			if p.id == "" {
				p.id = r.key
			}
			if c.UsagePoint.Kind != nil {
				p.service = *c.UsagePoint.Kind
			}
			if first := f.points.add(r, p, append(r.related, r.key+"/MeterReading")...); first.id != p.id {
				f.renamed = append(f.renamed, r.key)
			}
		}
		if c.MeterReading != nil {
			f.readings.add(r, &espiReading{resource: r, durations: map[int64]int{}}, append(r.related, r.key+"/IntervalBlock")...)
		}
		if c.ReadingType != nil {
			if first := f.types.add(r, c.ReadingType); *first != *c.ReadingType {
				return fmt.Errorf("ReadingType %s is not what another file says that it is; import the files one by one", r.key)
			}
		}
		if c.LocalTime != nil {
			f.local = append(f.local, *c.LocalTime)
		}
		if len(c.Blocks) > 0 {
			b := espiBlock{resource: r, entry: entry}
			for _, block := range c.Blocks {
				if block.Duration > 0 {
					b.durations = append(b.durations, block.Duration)
				}
			}
			f.blocks = append(f.blocks, b)
		}
		return nil
	})
}

// tie finds out which reading a block belongs to, and which type and usage point a
// reading has.
func (f *feeds) tie() error {
	for _, r := range f.readings.all {
		var ok bool
		if r.kind, ok = f.types.find(r.file, r.related); !ok {
			return fmt.Errorf("%s: a MeterReading (%s) has no ReadingType", f.files[r.file].name, r.key)
		}
		if r.point, ok = f.points.find(r.file, r.up); !ok {
			return fmt.Errorf("%s: a MeterReading (%s) has no UsagePoint", f.files[r.file].name, r.key)
		}
	}
	for i := range f.blocks {
		b := &f.blocks[i]
		var ok bool
		if b.reading, ok = f.readings.find(b.file, b.up); !ok {
			return fmt.Errorf("%s: an IntervalBlock (%s) has no MeterReading", f.files[b.file].name, b.key)
		}
		for _, d := range b.durations {
			b.reading.durations[d]++
		}
	}
	return nil
}

// choose picks the readings that tell the load of each usage point.
func (f *feeds) choose(out *Import) ([]*espiMeter, error) {
	byPoint := map[*espiPoint]*espiMeter{}
	var meters []*espiMeter
	left := map[string]int{}
	for _, r := range f.readings.all {
		_, reason := r.kind.rank()
		if r.point.service != 0 {
			reason = fmt.Sprintf("not electricity (ServiceCategory %d)", r.point.service)
		}
		if reason != "" {
			left[reason]++
			continue
		}
		m := byPoint[r.point]
		if m == nil {
			m = &espiMeter{point: r.point}
			byPoint[r.point] = m
			meters = append(meters, m)
		}
		m.readings = append(m.readings, r)
	}
	if len(meters) == 0 {
		return nil, errors.New("there is no electricity use in these files: no MeterReading in Wh or W")
	}
	for _, m := range meters {
		if n := m.narrow(); n > 0 {
			left["there is a better one of the same usage point"] += n
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(left)) {
		out.note("left out %d of %d meter readings: %s", left[reason], len(f.readings.all), reason)
	}
	return meters, nil
}

// narrow keeps the readings that tell the load best, and among those the ones with the
// shortest interval. There may be several, such as one for each tariff. It returns
// how many it left out.
func (m *espiMeter) narrow() int {
	n := len(m.readings)
	best := slices.MinFunc(m.readings, (*espiReading).compare)
	m.readings = slices.DeleteFunc(m.readings, func(r *espiReading) bool { return r.compare(best) != 0 })
	m.interval = time.Duration(best.length()) * time.Second
	return n - len(m.readings)
}

func (r *espiReading) compare(s *espiReading) int {
	a, _ := r.kind.rank()
	b, _ := s.kind.rank()
	if a != b {
		return a - b
	}
	return cmp.Compare(r.length(), s.length())
}

// length returns the readings' usual length in seconds, as they have it or else as
// their type says.
func (r *espiReading) length() int64 {
	var best int64
	for d, n := range r.durations {
		if n > r.durations[best] || n == r.durations[best] && d < best {
			best = d
		}
	}
	if best == 0 {
		best = int64(max(0, r.kind.Length))
	}
	return best
}

// read goes through the files again, for the readings.
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
		blocks := map[int]*espiReading{} // by the number of the entry
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
		err = errors.New("there is no reading in these files")
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

// espiTally counts readings.
type espiTally struct{ all, length, doubtful int }

func (t *espiTally) report(out *Import) {
	if t.length > 0 {
		out.note("left out %d of %d readings, which do not last %s", t.length, t.all, out.Interval)
	}
	if t.doubtful > 0 {
		out.note("%d of %d readings are marked as estimated, questionable or projected; they are in", t.doubtful, t.all)
	}
}

// blockReader reads interval blocks into a meter's series.
type blockReader struct {
	out      *series.MeterBuilder
	interval int64 // seconds
	scale    float64
	tally    *espiTally
}

type espiPeriod struct {
	Duration *int64 `xml:"duration"`
	Start    *int64 `xml:"start"`
}

type espiIntervalReading struct {
	Period    espiPeriod `xml:"timePeriod"`
	Value     string     `xml:"value"`
	Qualities []int      `xml:"ReadingQuality>quality"`
}

// read reads the rest of an entry.
func (r *blockReader) read(d *xml.Decoder) error {
	// A reading without a period follows the one before it, the first the start
	// of its block.
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

// add puts a reading that starts at next, if it does not say otherwise, into the
// series, and returns when it ends.
func (r *blockReader) add(v *espiIntervalReading, next int64) (int64, error) {
	start, duration := next, r.interval
	if v.Period.Start != nil {
		start = *v.Period.Start
	}
	if v.Period.Duration != nil {
		duration = *v.Period.Duration
	}
	if start < 0 || start > 1<<40 || duration < 0 || duration > 1<<32 {
		return 0, fmt.Errorf("a reading has no start, or one that cannot be: %d, for %d s", start, duration)
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
			return 0, fmt.Errorf("value %q is not a number", clip([]byte(text)))
		}
		kw = value * r.scale
	}
	// 8 and 9 are estimated, 10 questionable, 12 projected, 13 mixed.
	if slices.ContainsFunc(v.Qualities, func(q int) bool { return slices.Contains([]int{8, 9, 10, 12, 13}, q) }) {
		r.tally.doubtful++
	}
	if err := r.out.Add(series.Instant{Unix: start}, kw); err != nil {
		return 0, fmt.Errorf("a reading %w", err)
	}
	return next, nil
}
