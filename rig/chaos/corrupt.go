package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// stored is a kind of file that servers, agents or their engines write.
type stored struct {
	name string
	// dir is the folder that read needs, and files selects the files in it that are damaged.
	dir   string
	files func(path string) bool
	// read reads everything in a copy of the folder as the product does, and returns its
	// parts by name.
	read func(ctx context.Context, dir string) (map[string]string, error)
	// names are words of which an error must contain one, so that a person knows what is
	// damaged.
	names []string
	// share is the number of damaged files out of a hundred.
	share int

	whole                map[string]string
	flips, cuts          int
	harmless, found, bad int
}

// The verdicts on a damaged file.
const (
	harmless = "harmless"
	detected = "detected"
	silent   = "SILENT"
)

// corruption damages files of a stopped fleet, reads all of them, and compares their
// contents with those before the damage. One in six files is truncated, and a bit is
// flipped in the others.
func corruption(ctx context.Context, o options, out io.Writer) error {
	begun := time.Now()
	all, err := fixture(ctx, o)
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.whole, err = k.undamaged(ctx, o.dir); err != nil {
			return fmt.Errorf("%s, not damaged: %w", k.name, err)
		}
		if len(k.whole) == 0 {
			return fmt.Errorf("%s: there is nothing to read", k.name)
		}
	}
	fmt.Fprintf(out, "the files of a stopped fleet are ready after %.0f s\n", time.Since(begun).Seconds())
	rng := rand.New(rand.NewPCG(o.seed, 7))
	var problems []string
	truncations := o.kills / 5
	for i := range o.kills + truncations {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k := pickStored(all, rng)
		verdict, what, err := k.damage(ctx, o.dir, i >= o.kills, rng)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		if verdict == silent || verdict == detected && !containsAny(what, k.names) {
			problems = append(problems, fmt.Sprintf("%s: %s: %s", k.name, verdict, what))
		}
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tflips\ttruncations\tharmless\tdetected\tsilent\t")
	var sum stored
	for _, k := range all {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", k.name, k.flips, k.cuts, k.harmless, k.found, k.bad)
		sum.flips, sum.cuts, sum.harmless, sum.found, sum.bad = sum.flips+k.flips, sum.cuts+k.cuts, sum.harmless+k.harmless, sum.found+k.found, sum.bad+k.bad
	}
	_ = w.Flush() // only people read this output
	fmt.Fprintf(out, "%.0f s\n", time.Since(begun).Seconds())
	fmt.Fprintf(out, "flips %d, truncations %d, harmless %d, detected %d, silent %d\n", sum.flips, sum.cuts, sum.harmless, sum.found, sum.bad)
	if len(problems) > 0 {
		return errors.New(strings.Join(problems[:min(len(problems), 20)], "\n"))
	}
	return nil
}

func containsAny(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

func pickStored(all []*stored, rng *rand.Rand) *stored {
	sum := 0
	for _, k := range all {
		sum += k.share
	}
	x := rng.IntN(sum)
	for _, k := range all {
		if x -= k.share; x < 0 {
			return k
		}
	}
	return nil
}

// undamaged reads a copy without damage.
func (k *stored) undamaged(ctx context.Context, dir string) (map[string]string, error) {
	to, err := k.copied(dir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(to)
	return k.read(ctx, to)
}

func (k *stored) copied(dir string) (string, error) {
	to, err := os.MkdirTemp(dir, "damaged")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(to, 0o755); err != nil {
		return "", err
	}
	to = filepath.Join(to, "copy")
	return to, copyTree(k.dir, to)
}

// damage damages one file of a copy and returns the effect on reading the copy. what
// describes the damage and the error.
func (k *stored) damage(ctx context.Context, dir string, cut bool, rng *rand.Rand) (verdict, what string, err error) {
	to, err := k.copied(dir)
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(filepath.Dir(to))
	path, off, err := k.spot(to, rng)
	if err != nil {
		return "", "", err
	}
	name, err := filepath.Rel(to, path)
	if err != nil {
		return "", "", err
	}
	if cut {
		k.cuts++
		what = fmt.Sprintf("%s cut to %d bytes", name, off)
		err = os.Truncate(path, off)
	} else {
		k.flips++
		bit := rng.IntN(8)
		what = fmt.Sprintf("%s, byte %d, bit %d", name, off, bit)
		err = flip(path, off, bit)
	}
	if err != nil {
		return "", "", err
	}
	got, err := k.read(ctx, to)
	if err != nil {
		k.found++
		return detected, what + ": " + err.Error(), nil
	}
	switch verdict := k.compare(got); verdict {
	case harmless:
		k.harmless++
		return verdict, what, nil
	}
	k.bad++
	return silent, what + ": " + k.difference(got), nil
}

func (k *stored) compare(got map[string]string) string {
	verdict := harmless
	for name, want := range k.whole {
		if has, ok := got[name]; !ok || has != want {
			return silent
		}
	}
	for name := range got {
		if _, ok := k.whole[name]; !ok {
			return silent
		}
	}
	return verdict
}

// difference names the parts that differ.
func (k *stored) difference(got map[string]string) string {
	var all []string
	for name, want := range k.whole {
		if has, ok := got[name]; !ok {
			all = append(all, name+" is missing")
		} else if has != want {
			all = append(all, name+" differs")
		}
	}
	slices.Sort(all)
	return strings.Join(all[:min(len(all), 5)], ", ")
}

// spot chooses a random byte in files of this kind.
func (k *stored) spot(dir string, rng *rand.Rand) (path string, off int64, err error) {
	type file struct {
		path string
		size int64
	}
	var all []file
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || k.files != nil && !k.files(path) {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			all = append(all, file{path, info.Size()})
		}
		return err
	})
	if err != nil || len(all) == 0 {
		return "", 0, errors.Join(err, errors.New("there is no file to damage"))
	}
	// Half of the damages choose a file at random and the other half a byte, so that small
	// files are damaged, too.
	f := all[rng.IntN(len(all))]
	if rng.IntN(2) == 0 {
		sum := int64(0)
		for _, x := range all {
			sum += x.size
		}
		at := rng.Int64N(sum)
		for _, x := range all {
			if f = x; at < x.size {
				break
			}
			at -= x.size
		}
	}
	return f.path, rng.Int64N(f.size), nil
}

func flip(path string, off int64, bit int) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, off)
	if err == nil {
		b[0] ^= 1 << bit
		_, err = f.WriteAt(b, off)
	}
	return errors.Join(err, f.Close())
}

// copyTree copies a folder with owners and permissions, without sockets.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		into := filepath.Join(to, name)
		switch {
		case d.IsDir():
			err = os.Mkdir(into, info.Mode().Perm())
		case d.Type().IsRegular():
			var data []byte
			if data, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(into, data, info.Mode().Perm())
			}
		default:
			return nil
		}
		if err != nil {
			return err
		}
		return copyOwner(info, into)
	})
}
