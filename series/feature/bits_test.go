package feature

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
	"time"

	"loadstar/series"
)

// TestSameBitsEverywhere checks that the inputs have the same bits on every platform. Its loads
// are computed from integers, because results of functions such as math.Sin may differ in the
// last bit. If you change the inputs intentionally, write the new checksum here. Weights that
// were trained with the old inputs then no longer fit.
func TestSameBitsEverywhere(t *testing.T) {
	zone, err := time.LoadLocation("Europe/London")
	if err != nil {
		t.Fatal(err)
	}
	state := uint32(1)
	random := func() float32 { // from 0 to 1
		state = state*1664525 + 1013904223
		return float32(state>>8) / (1 << 24)
	}
	start := time.Date(2017, 8, 1, 0, 0, 0, 0, time.UTC).Unix()
	m := series.Meter{ID: "a", Start: start, Load: make([]float32, 24*160)}
	weather := make([]float32, len(m.Load))
	for i := range m.Load {
		m.Load[i] = float32(i%24)/8 + float32(random()*random())
		weather[i] = float32(20*random()) - 3
		if random() < 0.01 {
			m.Load[i] = float32(math.NaN())
		}
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "bits", Interval: time.Hour, Clock: zone, Country: "GB",
		Weather: series.Weather{Start: start, Names: []string{"temperature", "wind"}, Columns: [][]float32{weather, weather[24:]}},
	}, []series.Meter{m})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		targets int
		want    uint32
	}{{1, 0x4ed87bb6}, {24, 0x2db8c9ad}} {
		f := newFrame(t, d, 1, c.targets, 0.1)
		r := f.Rows(m)
		sum := crc32.NewIEEE()
		x, y, text := make([]float32, f.Width()), make([]float32, 1), []byte(nil)
		for k := range r.Len(series.All) {
			at := series.Example{Last: r.At(series.All, k), Target: k % c.targets}
			r.Gather(x, y, []series.Example{at})
			text = text[:0]
			for _, v := range append(x, y[0], r.Unscale(at, y[0])) {
				text = binary.LittleEndian.AppendUint32(text, math.Float32bits(v))
			}
			_, _ = sum.Write(text) // never fails
		}
		if got := sum.Sum32(); got != c.want || r.Len(series.All) < 3000 {
			t.Errorf("%d targets: checksum %#x of %d examples, want %#x", c.targets, got, r.Len(series.All), c.want)
		}
	}
}
