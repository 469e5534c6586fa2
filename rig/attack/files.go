package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"loadstar/rig/product"
)

// modelFiles lists the attacks by model files from somebody else.
func modelFiles() []Attack {
	return []Attack{{ID: "X8", Name: "hostile weights or checkpoints break the program that opens them, or are used", Run: hostileFiles}}
}

// tensors returns a .safetensors file with the given header.
func tensors(header string, numbers []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), numbers...)
}

// hostileFiles succeeds if a command that opens a hostile file of a run crashes, needs 400 MB or a
// minute, or accepts the file.
func hostileFiles(ctx context.Context, f *Fleet) (Result, error) {
	plan := must(f.write("plan.yaml", "name: run\nmodel: {name: dense, targets: 1h}\nalgorithm: fedavg\nrounds: 2\nclient: {steps: 2}\nevaluate: {every: 0}\n"))
	dir := f.path("run")
	must(run(ctx, f.bin, nil, "simulate", plan, "--data", f.data, "--out", dir, "--baseline", "none", "--quiet"))
	forecast := []string{"forecast", dir, "--data", f.data, "-o", f.path("forecast.csv")}
	resume, checkpoint := must2(f.interrupted(ctx))
	if _, err := run(ctx, f.bin, nil, forecast...); err != nil {
		return Result{}, fmt.Errorf("the honest file: %w", err)
	}
	shared := must(os.ReadFile(filepath.Join(dir, "shared.safetensors")))
	n := int(8 + binary.LittleEndian.Uint64(shared))
	header := string(shared[8:n])
	poisoned := func(bits uint32) []byte {
		b := bytes.Clone(shared)
		binary.LittleEndian.PutUint32(b[n:], bits)
		return b
	}
	long := bytes.Clone(checkpoint)
	for i := 16; i < min(len(long), 4096); i += 8 { // every count is huge
		binary.LittleEndian.PutUint64(long[i:], math.MaxInt64/8)
	}
	var bomb bytes.Buffer
	check(gob.NewEncoder(&bomb).Encode(map[string][]float32{"Own": make([]float32, 50<<20)}))
	files := []struct {
		what, name string
		content    []byte
		command    []string
	}{
		{"a header of 2^63 bytes", "shared.safetensors", append([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, shared[8:]...), forecast},
		{"a header longer than the file", "shared.safetensors", append([]byte{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0}, shared[8:]...), forecast},
		{"deep JSON", "shared.safetensors", tensors(strings.Repeat(`{"a":`, 1<<20), nil), forecast},
		{"a million tensors", "shared.safetensors", tensors("{"+strings.Repeat(`"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},`, 1<<20)+`"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, nil), forecast},
		{"a shape of 2^62", "shared.safetensors", tensors(`{"trunk.0.weight":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`, nil), forecast},
		{"overlapping tensors", "shared.safetensors", tensors(overlapping(header), shared[n:]), forecast},
		{"other shapes", "shared.safetensors", tensors(strings.Replace(header, `"shape":[96,`, `"shape":[48,`, 1), shared[n:]), forecast},
		{"a weight that is no number", "shared.safetensors", poisoned(0x7fc00000), forecast},
		{"an infinite weight", "shared.safetensors", poisoned(0x7f800000), forecast},
		{"half of the file", "shared.safetensors", shared[:len(shared)/2], forecast},
		{"a scaling with overlapping tensors", "scaling.safetensors", tensors(overlapping(header), shared[n:]), forecast},
		{"a checkpoint with huge counts", "checkpoint", long, resume},
		{"half of a checkpoint", "checkpoint", checkpoint[:len(checkpoint)/2], resume},
		{"a gob of 200 MB", "checkpoint", bomb.Bytes(), resume},
		{"a gob that states 1 GB", "checkpoint", []byte{0xfc, 0x3f, 0xff, 0xff, 0xff, 1, 2, 3}, resume},
	}
	most := 0
	for i, x := range files {
		path := filepath.Join(dir, x.name)
		if x.name == "checkpoint" {
			path = filepath.Join(f.path("interrupted"), x.name)
		}
		honest := must(os.ReadFile(path))
		if bytes.Equal(honest, x.content) {
			return Result{}, fmt.Errorf("%s: the file is the same as the honest one", x.what)
		}
		check(os.WriteFile(path, x.content, 0o600))
		problem, used, err := f.open(ctx, fmt.Sprint("open-", i), x.command)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", x.what, err)
		}
		if problem != "" {
			return succeeded("%s: %s", x.what, problem), nil
		}
		most = max(most, used)
		check(os.WriteFile(path, honest, 0o600))
	}
	if _, err := run(ctx, f.bin, nil, forecast...); err != nil {
		return Result{}, fmt.Errorf("the honest file after all hostile ones: %w", err)
	}
	return repelled("%d hostile files are refused, with at most %d MB", len(files), most), nil
}

// interrupted starts a run and kills it after a checkpoint. It returns the command that resumes it,
// and the checkpoint.
func (f *Fleet) interrupted(ctx context.Context) (resume []string, checkpoint []byte, err error) {
	plan, err := f.write("interrupted.yaml", "name: interrupted\nmodel: {name: dense, targets: 1h}\nalgorithm: fedavg\nrounds: 100000\nclient: {steps: 2}\nevaluate: {every: 0}\n")
	if err != nil {
		return nil, nil, err
	}
	dir := f.path("interrupted")
	begin := []string{"simulate", plan, "--data", f.data, "--out", dir, "--baseline", "none", "--quiet", "--save", "0s"}
	p, err := f.start("interrupted", begin...)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, "checkpoint")
	if ok, err := product.Eventually(ctx, time.Minute, func() (bool, error) { return exists(path), nil }); err != nil || !ok {
		return nil, nil, errors.Join(errors.New("the run has no checkpoint"), err)
	}
	if err := p.Kill(); err != nil {
		return nil, nil, err
	}
	checkpoint, err = os.ReadFile(path)
	return append(begin, "--resume"), checkpoint, err
}

// overlapping makes the second tensor of a header start where the first one does.
func overlapping(header string) string {
	const key = `"data_offsets":[`
	first := strings.Index(header, key)
	second := first + len(key) + strings.Index(header[first+len(key):], key)
	start := second + len(key)
	end := start + strings.Index(header[start:], ",")
	return header[:start] + "0" + header[end:]
}

// open runs a command on a hostile file. It returns what is wrong with the outcome, or an empty
// string, and the memory used in MB.
func (f *Fleet) open(ctx context.Context, name string, args []string) (problem string, used int, err error) {
	p, err := f.start(name, args...)
	if err != nil {
		return "", 0, err
	}
	limit := time.After(time.Minute)
	for {
		select {
		case <-p.Done():
			text := p.Log()
			switch {
			case strings.Contains(text, "panic:") || strings.Contains(text, "fatal error"):
				return "the program crashes: " + line(text, "panic:") + line(text, "fatal error"), used, nil
			case !strings.Contains(text, "loadstar: "):
				return "the file is used: " + product.LastLine(text), used, nil
			}
			return "", used, nil
		case <-limit:
			return "the program does not end within a minute", used, nil
		case <-ctx.Done():
			return "", used, ctx.Err()
		case <-time.After(2 * time.Millisecond):
			if n, err := memory(p, "VmHWM"); err == nil { // the process may have ended
				if used = max(used, n); used > 400 {
					return fmt.Sprintf("the program takes %d MB", used), used, errors.Join(p.Kill())
				}
			}
		}
	}
}
