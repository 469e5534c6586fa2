package synth

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"
)

// paperCorrelations is table I of bose2023. The paper's columns for Illinois and New York
// are equal except in two rows.
var paperCorrelations = map[string]map[string]float64{
	"bose2023-ca-sample": {
		"floor_area": .9591, "cooling_capacity": .9905, "heating_capacity": -.1853, "wall_area": .3702, "window_area": .2417, "year_built": -.4462,
		"temperature": .5473, "solar": .4101, "direct": .3838, "diffuse": .3446, "wind": .2288, "wind_direction": -.0246, "humidity": -.3853,
	},
	"bose2023-il-sample": {
		"floor_area": .9245, "cooling_capacity": .9683, "heating_capacity": .9374, "wall_area": .7385, "window_area": .9714, "year_built": -.2652,
		"temperature": .3789, "solar": .4870, "direct": .3789, "diffuse": .4577, "wind": .1396, "wind_direction": .0787, "humidity": -.2794,
	},
	"bose2023-ny-sample": {
		"floor_area": .9245, "cooling_capacity": .9173, "heating_capacity": .9374, "wall_area": .7385, "window_area": .9714, "year_built": -.2652,
		"temperature": .2506, "solar": .4870, "direct": .3789, "diffuse": .4577, "wind": .1396, "wind_direction": .0787, "humidity": -.2794,
	},
}

// TestStockCorrelations compares the samples with table I of bose2023: the correlation of
// static values with the mean load of buildings, and the mean over buildings of the
// correlation of weather with load.
func TestStockCorrelations(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long on an emulator; TestStockBytes compares values")
	}
	const tolerance = .1
	for name, paper := range paperCorrelations {
		s := stock(t, name)
		load := make([]float32, s.Steps())
		ours := map[string]float64{}
		var means []float64
		statics := make([][]float64, len(s.Statics))
		for i := range s.Len() {
			b := s.Building(i, load)
			means = append(means, mean(load))
			for j, v := range b.Static {
				statics[j] = append(statics[j], float64(v))
			}
			for j, column := range s.Weather {
				ours[column] += correlation(wide(s.WeatherColumns()[j]), wide(load)) / float64(s.Len())
			}
		}
		for j, column := range s.Statics {
			ours[column] = correlation(statics[j], means)
		}
		for column, want := range paper {
			got, ok := ours[column]
			t.Logf("%s %s: paper %.4f, generated %.4f", name, column, want, got)
			if !ok || math.Abs(got-want) > tolerance {
				t.Errorf("%s: the correlation of %s is %.3f, that of the paper %.3f", name, column, got, want)
			}
		}
	}
}

// TestStockErrors compares the mean error of persistence in the last tenth of the year with the
// errors that tables III and IV of bose2023 imply. An error divided by its MASE is the error of
// persistence. For the first three buildings, the mean error in the table is divided by the
// mean MASE in the table. For all 42 buildings, that quotient has no meaning, because a few
// large buildings determine one mean and many small ones determine the other. The error of
// configuration 1 is therefore divided by .8, which is between the MASE of the three states.
func TestStockErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long on an emulator; TestStockBytes compares values")
	}
	for name, paper := range map[string]struct{ three, all float64 }{
		"bose2023-ca": {.2861 / 1.9540, 20.7145 / .8},
		"bose2023-il": {1.9070 / 2.8521, 18.0419 / .8},
		"bose2023-ny": {8.3716 / 2.6585, 24.8082 / .8},
	} {
		s := stock(t, name)
		load := make([]float32, s.Steps())
		var three, all float64
		small, large := math.Inf(1), 0.0
		types := map[string]int{}
		for i := range s.Len() {
			b := s.Building(i, load)
			types[b.Type]++
			if lowest := slices.Min(load); !(lowest > 0) {
				t.Errorf("%s: the lowest load of %s is %v", name, b.ID, lowest)
			}
			small, large = min(small, mean(load)), max(large, mean(load))
			sum, from := 0.0, len(load)*9/10
			for k := from; k < len(load); k++ {
				sum += math.Abs(float64(load[k]) - float64(load[k-1]))
			}
			sum /= float64(len(load) - from)
			all += sum / float64(s.Len())
			if i < 3 {
				three += sum / 3
			}
		}
		t.Logf("%s: persistence %.3f (paper %.3f) for three buildings, %.2f (%.2f) for all; mean loads from %.1f to %.0f kW",
			name, three, paper.three, all, paper.all, small, large)
		if r := three / paper.three; r < .8 || r > 1.25 {
			t.Errorf("%s: persistence of three buildings is off by %.3f, in the paper by %.3f", name, three, paper.three)
		}
		if r := all / paper.all; r < .85 || r > 1.15 {
			t.Errorf("%s: persistence is off by %.2f, in the paper by about %.2f", name, all, paper.all)
		}
		if small > 5 || large < 3000 {
			t.Errorf("%s: mean loads from %.1f to %.0f kW", name, small, large)
		}
		for kind, n := range types {
			if n != 3 || len(types) != len(kinds) {
				t.Errorf("%s: %d buildings of type %s, %d types", name, n, kind, len(types))
			}
		}
	}
}

// TestStockBytes fails if a stock changes, on any platform. Experiments depend on a stock's
// numbers. After an intended change, increase StockVersion.
func TestStockBytes(t *testing.T) {
	for name, want := range map[string]string{
		"bose2023-ca": "e03d295455d45f43", "bose2023-il": "46196075be28ecee", "bose2023-ny": "7b265de917494cdd",
		"bose2023-ca-sample": "41e3abeabed4cc4e", "bose2023-il-sample": "eeac1324e38e7306", "bose2023-ny-sample": "191213f8820b055b",
	} {
		if testing.Short() && name != "bose2023-ny-sample" {
			continue // takes long on an emulator
		}
		s := stock(t, name)
		h := fnv.New64a()
		add := func(v []float32) {
			for _, x := range v {
				_, _ = h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(x))) // writing to a hash never fails
			}
		}
		for _, column := range s.WeatherColumns() {
			add(column)
		}
		load := make([]float32, s.Steps())
		for i := range s.Len() {
			add(s.Building(i, load).Static)
			add(load)
		}
		if got := fmt.Sprintf("%x", h.Sum64()); got != want {
			t.Errorf("%s has bytes %s, not %s (version %d)", name, got, want, StockVersion)
		}
	}
}

func TestStockNames(t *testing.T) {
	if _, err := OpenStock("bose2023-tx"); err == nil || !strings.Contains(err.Error(), "bose2023-ca") {
		t.Errorf("an unknown stock: %v", err)
	}
	if a, b := stock(t, "bose2023-ca").Building(0, nil), stock(t, "bose2023-ca-sample").Building(0, nil); a.ID == b.ID {
		t.Errorf("two buildings are named %s", a.ID)
	}
}

func stock(t *testing.T, name string) *Stock {
	t.Helper()
	s, err := OpenStock(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mean(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	return sum / float64(len(v))
}

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}
