package skill

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"loadstar/series"
	"loadstar/series/feature"
)

// rowsSeed chooses the training rows if there are too many.
const rowsSeed = 1

// chunk is the number of rows that are written at a time.
const chunk = 1024

// writeRows writes a client's rows into a folder, in the format that peer.py describes, and
// returns the number of training rows. most limits that number. If there are more rows, they
// are sampled. The other splits have the rows of every stride-th origin.
func writeRows(dir string, m series.Meter, r *feature.Rows, most, stride int) (int, error) {
	train := sample(examples(r, series.Train, 1), most)
	for _, split := range []struct {
		name string
		at   []series.Example
	}{{"train", train}, {"validation", examples(r, series.Validation, stride)}, {"test", examples(r, series.Test, stride)}} {
		if len(split.at) == 0 {
			return 0, fmt.Errorf("meter %s has no complete windows in the %s split", m.ID, split.name)
		}
		if err := WriteSplit(filepath.Join(dir, split.name), m, r, split.at); err != nil {
			return 0, err
		}
	}
	return len(train), nil
}

// examples returns the examples of a split's origins that belong to the stride.
func examples(r *feature.Rows, p series.Part, stride int) []series.Example {
	var at []series.Example
	_ = r.Each(p, func(last int) error {
		if (last+1)%stride == 0 {
			for target := range r.PerOrigin() {
				at = append(at, series.Example{Last: last, Target: target})
			}
		}
		return nil
	}) // the function never returns an error
	return at
}

// sample returns at most n of the examples, in their original order.
func sample(at []series.Example, n int) []series.Example {
	if n <= 0 || len(at) <= n {
		return at
	}
	chosen := rand.New(rand.NewPCG(rowsSeed, 0)).Perm(len(at))[:n]
	slices.Sort(chosen)
	for i, k := range chosen {
		at[i] = at[k]
	}
	return at[:n]
}

// WriteSplit writes the rows of one split to files whose names begin with path.
func WriteSplit(path string, m series.Meter, r *feature.Rows, at []series.Example) (err error) {
	files := map[string]*bufio.Writer{}
	for _, name := range []string{"x", "y", "kw", "zero"} {
		f, err := os.Create(path + "." + name)
		if err != nil {
			return err
		}
		defer func() {
			if cerr := f.Close(); err == nil {
				err = cerr
			}
		}()
		files[name] = bufio.NewWriter(f)
	}
	put := func(name string, v []float32) error { return binary.Write(files[name], binary.LittleEndian, v) }
	horizon := r.Frame().Layout().Horizon
	x, y := make([]float32, chunk*r.Inputs()), make([]float32, chunk)
	kw, zero := make([]float32, chunk), make([]float32, chunk)
	for rows := range slices.Chunk(at, chunk) {
		n := len(rows)
		r.Gather(x, y, rows)
		for i, e := range rows {
			kw[i], zero[i] = m.Load[e.Last+horizon+e.Target], r.Unscale(e, 0)
		}
		err := errors.Join(put("x", x[:n*r.Inputs()]), put("y", y[:n]), put("kw", kw[:n]), put("zero", zero[:n]))
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"x", "y", "kw", "zero"} {
		if err := files[name].Flush(); err != nil {
			return err
		}
	}
	return nil
}
