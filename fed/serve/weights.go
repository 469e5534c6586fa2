package serve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"loadstar/fed/recipe"
	"loadstar/nn"
	"loadstar/nn/safetensors"
)

// weights reads the weights of the given layers. All other weights in the result are 0.
func (f *Folder) weights(q *recipe.Problem, name string, layers []nn.Layer) ([]float32, error) {
	w := make([]float32, q.Model.Net().Weights())
	text, err := readFile(filepath.Join(f.dir, name), maxWeights(len(w)), nil)
	if err != nil {
		return nil, err
	}
	if _, err := q.Model.ReadWeights(bytes.NewReader(text), w, layers); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return w, nil
}

// maxWeights returns the maximum size in bytes of a file with the given number of weights.
func maxWeights(n int) int64 { return 4*int64(n) + 1<<20 }

// clientWeights returns all weights of a client, and also their memory if another client can
// reuse it later.
func (f *Folder) clientWeights(id string) (w []float32, spare *[]float32, err error) {
	q := f.Model.Problem
	if f.tuned {
		w, err := f.weights(q, filepath.Join(TunedDir, WeightsFile(id)), q.Model.Net().Layers())
		if !errors.Is(err, fs.ErrNotExist) {
			return w, nil, err
		}
	}
	p := q.Partition
	if p.PersonalLen() == 0 {
		w, err = f.Model.join(nil)
		return w, nil, err
	}
	spare, err = f.personal(personalDir + string(filepath.Separator) + WeightsFile(id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, ErrNoHead
	case err != nil:
		return nil, nil, err
	}
	return *spare, spare, nil
}

// buffers contains reusable memory for the files of clients.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// personal reads the file of a client's personal weights and adds the shared weights. The files
// of all clients have the same tensors. Their header is parsed only once, because parsing takes
// longer than the rest of reading. Memory from a released client already contains the shared
// weights.
func (f *Folder) personal(name string) (*[]float32, error) {
	q := f.Model.Problem
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	text, err := readFile(filepath.Join(f.dir, name), maxWeights(q.Partition.PersonalLen()), (*buffer)[:0])
	if err != nil {
		return nil, err
	}
	*buffer = text
	spare, _ := f.spare.Get().(*[]float32)
	if spare == nil {
		w := slices.Clone(f.template)
		spare = &w
	}
	w := *spare
	if l := f.layout.Load(); l != nil && l.read(w, text) {
		for _, layer := range q.Partition.Personal() {
			if nn.NotFinite(w[layer.Offset():layer.Offset()+layer.Len()]) >= 0 {
				return nil, fmt.Errorf("%s: layer %s contains a number that is not finite", name, layer.Name)
			}
		}
		return spare, nil
	}
	if _, err := q.Model.ReadWeights(bytes.NewReader(text), w, q.Partition.Personal()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if l, err := newLayout(text, q.Partition.Personal()); err == nil {
		f.layout.Store(l)
	}
	return spare, nil
}

// layout is the header of a weight file, without its metadata, with the positions of its
// tensors.
type layout struct {
	header []byte
	size   int // bytes of numbers
	parts  []part
}

// part is a tensor: the positions of its first number in the file and in the weights, and
// its length.
type part struct{ from, to, n int }

// newLayout returns the layout of a valid file.
func newLayout(text []byte, layers []nn.Layer) (*layout, error) {
	tensors, _, err := safetensors.Read(bytes.NewReader(text), len(text))
	if err != nil {
		return nil, err
	}
	header, _ := split(text)
	if header == nil {
		return nil, errors.New("no header")
	}
	l := &layout{header: bytes.Clone(header)}
	for _, t := range tensors {
		for _, layer := range layers {
			if i := slices.IndexFunc(layer.Tensors, func(x nn.Tensor) bool { return x.Name == t.Name }); i >= 0 {
				l.parts = append(l.parts, part{from: l.size, to: layer.Tensors[i].Offset, n: len(t.Data)})
			}
		}
		l.size += 4 * len(t.Data)
	}
	if len(l.parts) != len(tensors) {
		return nil, errors.New("unknown tensors")
	}
	return l, nil
}

// read reads the numbers of a file into w. It returns false if the file has a different layout.
func (l *layout) read(w []float32, text []byte) bool {
	header, data := split(text)
	if header == nil || len(data) != l.size || !bytes.Equal(header, l.header) {
		return false
	}
	for _, p := range l.parts {
		from, to := data[p.from:p.from+4*p.n], w[p.to:p.to+p.n]
		for len(to) >= 4 && len(from) >= 16 { // bounds checks would take most of the time
			to[0] = math.Float32frombits(binary.LittleEndian.Uint32(from))
			to[1] = math.Float32frombits(binary.LittleEndian.Uint32(from[4:]))
			to[2] = math.Float32frombits(binary.LittleEndian.Uint32(from[8:]))
			to[3] = math.Float32frombits(binary.LittleEndian.Uint32(from[12:]))
			from, to = from[16:], to[4:]
		}
		for i := range to {
			to[i] = math.Float32frombits(binary.LittleEndian.Uint32(from[4*i:]))
		}
	}
	return true
}

// split returns the part of a file's header that follows the metadata, and the file's numbers.
// The header is nil if the file does not begin with metadata.
func split(text []byte) (header, data []byte) {
	const begin = `{"__metadata__":{`
	if len(text) < 8 {
		return nil, nil
	}
	n := binary.LittleEndian.Uint64(text)
	if n > uint64(len(text)-8) {
		return nil, nil
	}
	header, data = text[8:8+n], text[8+n:]
	if !bytes.HasPrefix(header, []byte(begin)) {
		return nil, nil
	}
	quoted := false
	for i := len(begin); i < len(header); i++ {
		switch c := header[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return bytes.TrimRight(header[i:], " "), data
		}
	}
	return nil, nil
}

// openFile opens a file for reading. It does not block on a named pipe in an untrusted folder.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// readFile reads a regular file of at most the given number of bytes. The result may use
// the memory of buffer.
func readFile(path string, most int64, buffer []byte) ([]byte, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes or is not a regular file; at most %d bytes are allowed", filepath.Base(path), info.Size(), most)
	}
	n := int(info.Size())
	b := slices.Grow(buffer, n)[:n]
	if _, err := file.ReadAt(b, 0); err != nil {
		return nil, err
	}
	return b, nil
}
