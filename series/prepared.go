package series

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"
	_ "time/tzdata" // use the same zones on every machine, even without a zone database
	"unsafe"

	"loadstar/internal/disk"
)

// A prepared file contains a dataset in its in-memory layout, so that the file can be
// memory-mapped instead of read:
//
//	magic            8 bytes
//	header length    8 bytes
//	header           JSON, padded to a multiple of 8
//	meters           one fixed-size record each
//	identifiers      the meters' names, padded
//	weather          float32, column by column
//	load             float32, meter by meter
//
// Numbers are little-endian, as on every CPU that we build for.
const preparedMagic = "LODSTAR1"

// preparedHeader is the JSON header. It determines the offsets of all sections.
type preparedHeader struct {
	Name        string        `json:"name"`
	Generated   bool          `json:"generated"`
	Interval    time.Duration `json:"interval"`
	Zone        string        `json:"zone"`
	FixedOffset *int          `json:"fixed_offset,omitempty"` // seconds; if absent, Zone is an IANA name
	Country     string        `json:"country,omitempty"`
	From        int64         `json:"from"` // the span of all meters
	To          int64         `json:"to"`
	Meters      int64         `json:"meters"`
	IDBytes     int64         `json:"id_bytes"`
	Floats      int64         `json:"floats"`
	StaticNames []string      `json:"static_names"`
	Weather     struct {
		Start int64    `json:"start"`
		Names []string `json:"names"`
		Steps int64    `json:"steps"`
	} `json:"weather"`
}

// recordFixed is the size in bytes of a meter's record without its static values. The
// fields are the start, the offset and length of the load (counted in floats), the offset
// and length of the name, and the fault counts.
const recordFixed = 8 + 8 + 8 + 4 + 4 + 6*8

func (h *preparedHeader) recordSize() int64 {
	return pad8(recordFixed + 4*int64(len(h.StaticNames)))
}

// places are the offsets of the sections from the start of the file.
type places struct{ records, ids, weather, load, end int64 }

func (h *preparedHeader) places(header int) (p places) {
	p.records = 16 + pad8(int64(header))
	p.ids = p.records + h.recordSize()*h.Meters
	p.weather = pad8(p.ids + h.IDBytes)
	p.load = pad8(p.weather + 4*h.Weather.Steps*int64(len(h.Weather.Names)))
	p.end = p.load + 4*h.Floats
	return p
}

// plausible reports whether every count in the header fits into a file of the given size. Sums
// of section sizes then cannot overflow.
func (h *preparedHeader) plausible(size int64) bool {
	for _, n := range []int64{h.Meters, h.IDBytes, h.Floats, h.Weather.Steps} {
		if n < 0 || n > size {
			return false
		}
	}
	return len(h.Weather.Names) < 1<<16 && len(h.StaticNames) < 1<<16
}

func pad8(n int64) int64 { return (n + 7) &^ 7 }

// preparedFile is a prepared file that is mapped into memory.
type preparedFile struct {
	header preparedHeader
	at     places
	data   []byte
}

// WritePrepared writes a dataset as a prepared file. It replaces an existing file
// atomically, after all data has been flushed to disk.
func WritePrepared(path string, d *Dataset) error {
	h := preparedHeader{Name: d.Name, Generated: d.Generated, Interval: d.Interval, Zone: d.Clock.String(), Country: d.Country, Meters: int64(d.Len()), StaticNames: d.StaticNames}
	if _, err := time.LoadLocation(h.Zone); err != nil {
		_, offset := time.Unix(0, 0).In(d.Clock).Zone()
		h.FixedOffset = &offset
	}
	h.From, h.To = d.Span()
	h.Weather.Start, h.Weather.Names = d.Weather.Start, d.Weather.Names
	if len(d.Weather.Columns) > 0 {
		h.Weather.Steps = int64(len(d.Weather.Columns[0]))
	}
	for i := range d.Len() {
		m := d.Meter(i)
		h.IDBytes += int64(len(m.ID))
		h.Floats += int64(len(m.Load))
	}
	header, err := json.Marshal(h)
	if err != nil {
		return err
	}
	at := h.places(len(header))
	f, err := disk.CreatePrivate(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	w := &preparedWriter{w: bufio.NewWriterSize(f, 1<<20)}
	w.bytes([]byte(preparedMagic))
	w.uint64(uint64(len(header)))
	w.bytes(header)
	w.pad(at.records)
	var load, id int64
	for i := range d.Len() {
		m := d.Meter(i)
		w.uint64(uint64(m.Start))
		w.uint64(uint64(load))
		w.uint64(uint64(len(m.Load)))
		w.uint32(uint32(id))
		w.uint32(uint32(len(m.ID)))
		for _, n := range m.Faults.counts() {
			w.uint64(uint64(*n))
		}
		w.floats(m.Static)
		w.pad(at.records + h.recordSize()*int64(i+1))
		load += int64(len(m.Load))
		id += int64(len(m.ID))
	}
	for i := range d.Len() {
		w.bytes([]byte(d.Meter(i).ID))
	}
	w.pad(at.weather)
	for _, c := range d.Weather.Columns {
		w.floats(c)
	}
	w.pad(at.load)
	for i := range d.Len() {
		w.floats(d.Meter(i).Load)
	}
	if w.err == nil && w.at != at.end {
		w.err = fmt.Errorf("wrote %d bytes instead of %d", w.at, at.end)
	}
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if err := f.Finish(w.err); err != nil {
		return fmt.Errorf("prepare %w", err)
	}
	return nil
}

// counts returns pointers to the fault counts, in their order in a meter's record.
func (f *Faults) counts() [6]*int {
	return [6]*int{&f.Rows, &f.Duplicates, &f.Conflicts, &f.OutOfOrder, &f.OffGrid, &f.Nonexistent}
}

// preparedWriter writes a prepared file and tracks the position in it and the first error.
type preparedWriter struct {
	w   *bufio.Writer
	at  int64
	err error
	buf [8]byte
}

func (w *preparedWriter) bytes(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
		w.at += int64(len(b))
	}
}

func (w *preparedWriter) uint32(v uint32) {
	binary.LittleEndian.PutUint32(w.buf[:], v)
	w.bytes(w.buf[:4])
}

func (w *preparedWriter) uint64(v uint64) {
	binary.LittleEndian.PutUint64(w.buf[:], v)
	w.bytes(w.buf[:8])
}

func (w *preparedWriter) floats(x []float32) {
	for _, v := range x {
		w.uint32(math.Float32bits(v))
	}
}

func (w *preparedWriter) pad(to int64) {
	for w.err == nil && w.at < to {
		w.bytes([]byte{0})
	}
}

// OpenPrepared maps a prepared file into memory. The dataset, its meters and their windows
// are valid until the returned closer is closed.
func OpenPrepared(path string) (*Dataset, io.Closer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if info.Size() < 16 || info.Size() > math.MaxInt {
		return nil, nil, fmt.Errorf("%s: not a prepared dataset", path)
	}
	data, err := disk.MapFile(f, int(info.Size()))
	if err != nil {
		return nil, nil, err
	}
	p := &preparedFile{data: data}
	d, err := p.dataset()
	if err != nil {
		_ = disk.Unmap(data) // an error here would hide the one about the file
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, p, nil
}

// Close unmaps the file.
func (p *preparedFile) Close() error {
	data := p.data
	p.data = nil
	return disk.Unmap(data)
}

// dataset checks the header and every meter's record once and returns the dataset. The
// method meter can then read records without checks.
func (p *preparedFile) dataset() (*Dataset, error) {
	if string(p.data[:8]) != preparedMagic {
		return nil, errors.New("not a prepared dataset, or one from another version; prepare it again")
	}
	size := int64(len(p.data))
	n := binary.LittleEndian.Uint64(p.data[8:])
	if n > uint64(size-16) {
		return nil, errors.New("the file is truncated; prepare it again")
	}
	h := &p.header
	if err := json.Unmarshal(p.data[16:16+n], h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if !h.plausible(size) {
		return nil, errors.New("the file is damaged; prepare it again")
	}
	p.at = h.places(int(n))
	if p.at.end != size {
		return nil, fmt.Errorf("the file has %d bytes instead of %d; prepare it again", size, p.at.end)
	}
	for i := range int(h.Meters) {
		r := p.record(i)
		at, n := binary.LittleEndian.Uint64(r[8:]), binary.LittleEndian.Uint64(r[16:])
		id, idLen := int64(binary.LittleEndian.Uint32(r[24:])), int64(binary.LittleEndian.Uint32(r[28:]))
		if floats := uint64(h.Floats); at > floats || n > floats-at || id+idLen > h.IDBytes {
			return nil, fmt.Errorf("the record of meter %d is damaged; prepare the file again", i)
		}
	}
	clock, err := time.LoadLocation(h.Zone)
	if h.FixedOffset != nil {
		clock, err = time.FixedZone(h.Zone, *h.FixedOffset), nil
	}
	if err != nil {
		return nil, err
	}
	w := Weather{Start: h.Weather.Start, Names: h.Weather.Names}
	for i := range h.Weather.Names {
		w.Columns = append(w.Columns, p.floats(p.at.weather+4*int64(i)*h.Weather.Steps, h.Weather.Steps))
	}
	d, err := NewDataset(Dataset{
		Name: h.Name, Generated: h.Generated, Interval: h.Interval, Clock: clock, Country: h.Country, Weather: w, StaticNames: h.StaticNames,
	}, nil)
	if err != nil {
		return nil, err
	}
	d.file = p
	return d, nil
}

func (p *preparedFile) span() (from, to int64) { return p.header.From, p.header.To }

func (p *preparedFile) len() int { return int(p.header.Meters) }

func (p *preparedFile) record(i int) []byte {
	size := p.header.recordSize()
	at := p.at.records + size*int64(i)
	return p.data[at : at+size]
}

func (p *preparedFile) meter(i int) Meter {
	r := p.record(i)
	id := p.at.ids + int64(binary.LittleEndian.Uint32(r[24:]))
	m := Meter{
		ID:    string(p.data[id : id+int64(binary.LittleEndian.Uint32(r[28:]))]),
		Start: int64(binary.LittleEndian.Uint64(r)),
		Load:  p.floats(p.at.load+4*int64(binary.LittleEndian.Uint64(r[8:])), int64(binary.LittleEndian.Uint64(r[16:]))),
	}
	for j, n := range m.Faults.counts() {
		*n = int(binary.LittleEndian.Uint64(r[32+8*j:]))
	}
	for j := range p.header.StaticNames {
		m.Static = append(m.Static, math.Float32frombits(binary.LittleEndian.Uint32(r[recordFixed+4*j:])))
	}
	return m
}

// floats returns n floats at an offset of the file, without copying them. The offset must
// be a multiple of 4.
func (p *preparedFile) floats(at, n int64) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&p.data[at])), n)
}
