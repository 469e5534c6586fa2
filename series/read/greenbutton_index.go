package read

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// feeds contains the resources of all files, except the readings.
type feeds struct {
	files    []source
	types    index[*espiReadingType]
	readings index[*espiReading]
	points   index[*espiPoint]
	local    []espiLocalTime
	blocks   []espiBlock
	renamed  []string // usage points that have several IDs
}

// resource contains the fields that all kinds of resources have: the index of the file, the
// key, and the links to other resources.
type resource struct {
	file    int
	key     string
	up      []string
	related []string
}

// index contains the resources of one kind. If a key occurs again, for example in the next
// month's file, only the first resource with that key is stored.
type index[T any] struct {
	all    []T
	byKey  map[string]T
	byLink map[string]T
	byFile map[int]map[string]T
}

// add adds a resource under its key, and under the links with which other resources refer
// to it. It returns the first resource that was added with that key.
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

// find returns the resource that one of the links points to. If no link points to a resource,
// and the file contains exactly one resource of this kind, find returns that resource.
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

// espiReading is an ESPI MeterReading. The method resolve sets its type and its usage point.
type espiReading struct {
	resource
	kind      *espiReadingType
	point     *espiPoint
	durations map[int64]int // the number of blocks by the duration of their readings in seconds
}

// espiPoint is an ESPI UsagePoint.
type espiPoint struct {
	id, title string
	service   int // 0 is electricity
}

// espiBlock is the position of an entry with interval blocks in its file.
type espiBlock struct {
	resource
	entry     int
	durations []int64
	reading   *espiReading
}

// espiMeter is a usage point with the readings that make up its load.
type espiMeter struct {
	point    *espiPoint
	readings []*espiReading
	interval time.Duration
}

// scan collects the resources of a file and skips the readings.
func (f *feeds) scan(file int) error {
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
			p.id = cmp.Or(p.id, r.key)
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
				return fmt.Errorf("ReadingType %s contradicts its definition in another file; import the files separately", r.key)
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

// resolve follows the links: from blocks to their meter readings, and from meter readings
// to their type and usage point.
func (f *feeds) resolve() error {
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

// choose selects the readings that represent each usage point's load.
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
		return nil, errors.New("these files contain no electricity consumption: no MeterReading in Wh or W")
	}
	for _, m := range meters {
		if n := m.narrow(); n > 0 {
			left["the usage point has a better one"] += n
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(left)) {
		out.note("left out %d of %d meter readings: %s", left[reason], len(f.readings.all), reason)
	}
	return meters, nil
}

// narrow keeps the meter readings with the best rank and, of these readings, those with the
// shortest interval. Several can remain, for example one per tariff. It returns the number of
// meter readings that it dropped.
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

// length returns the most frequent duration of the readings in seconds, or the interval
// length of their type if the readings do not state a duration.
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
