package experiment

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"loadstar/series"
)

// Volume is the value of Part.Data for a part whose rows are the sizes of a dataset's
// readings.
const Volume = "volume"

// volume returns the size of a dataset's readings in bytes, to compare the traffic of
// training with that of sending the readings themselves.
func (p *Part) volume(d *series.Dataset) (row, error) {
	var all size
	for k := range d.Len() {
		m := d.Meter(k)
		if err := all.add(d, m); err != nil {
			return row{}, fmt.Errorf("%s: %w", m.ID, err)
		}
	}
	return row{Result: Result{Part: p.Name, Dataset: d.Name, Generated: d.Generated, Method: "readings", Figures: map[string]Figure{
		"clients": {float64(d.Len())}, "hours": {all.hours},
		"readings_csv": {float64(all.csv)}, "readings_float": {float64(all.float)}, "readings_gzip": {float64(all.gzip)},
	}}}, nil
}

// size contains the size of readings in bytes and the number of hours that they cover.
type size struct {
	hours            float64
	csv, float, gzip int
}

// add adds the readings of a meter. Missing readings are not sent.
//
//   - csv is a line for each reading, with its local time and load.
//   - float is a number of four bytes for each reading.
//   - gzip is the smallest of three gzipped encodings of one meter: the lines of csv, the
//     numbers of float, and lines that contain only the load.
func (s *size) add(d *series.Dataset, m series.Meter) error {
	var lines, numbers, loads []byte
	for i, load := range m.Load {
		if series.Missing(load) {
			continue
		}
		s.hours += d.Interval.Hours()
		lines = d.Time(m.Start, i).AppendFormat(lines, time.DateTime)
		lines = append(lines, ',')
		lines = strconv.AppendFloat(lines, float64(load), 'f', -1, 32)
		lines = append(lines, '\n')
		loads = append(strconv.AppendFloat(loads, float64(load), 'f', -1, 32), '\n')
		numbers = binary.LittleEndian.AppendUint32(numbers, math.Float32bits(load))
	}
	s.csv += len(lines)
	s.float += len(numbers)
	least := math.MaxInt
	for _, text := range [][]byte{lines, numbers, loads} {
		n, err := compressed(text)
		if err != nil {
			return err
		}
		least = min(least, n)
	}
	s.gzip += least
	return nil
}

// compressed returns the size of text after gzip compression at the highest level.
func compressed(text []byte) (int, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	if _, err := io.Copy(w, bytes.NewReader(text)); err != nil {
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	return out.Len(), nil
}
