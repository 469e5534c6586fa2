package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"loadstar/internal/atomicfile"
)

// copyOfStart is the file in a run's folder with the weights from which the run started. A
// resumed run reads it, so the original may change or disappear.
const copyOfStart = "start.safetensors"

// readStart makes the run start from the shared weights in the file or run folder that the
// plan names. It returns the content of the file, or nil if the plan names none.
func (s *simulation) readStart() ([]byte, error) {
	if s.Plan.Start == "" {
		return nil, nil
	}
	var file []byte
	err := fs.ErrNotExist
	if s.Resume {
		file, err = os.ReadFile(filepath.Join(s.Dir, copyOfStart))
	}
	if errors.Is(err, fs.ErrNotExist) {
		path := s.Plan.Start
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, "shared.safetensors")
		}
		file, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("start: %w; name a .safetensors file of shared layers or the folder of a run", err)
	}
	problem := s.setup.Problem
	whole := make([]float32, problem.Model.Net().Weights())
	if _, err := problem.Model.ReadWeights(bytes.NewReader(file), whole, problem.Partition.Shared()); err != nil {
		return nil, fmt.Errorf("start: %s does not have the shared layers of the plan: %w", s.Plan.Start, err)
	}
	shared := make([]float32, problem.Partition.SharedLen())
	problem.Partition.Cut(whole, shared, make([]float32, problem.Partition.PersonalLen()))
	s.setup = s.setup.From(shared)
	sum := sha256.Sum256(file)
	s.startSum = hex.EncodeToString(sum[:])
	return file, nil
}

// keepStart copies the weights from which the run starts to its folder.
func (s *simulation) keepStart() error {
	if s.startFile == nil {
		return nil
	}
	return atomicfile.Write(filepath.Join(s.folder.Dir, copyOfStart), func(to *os.File) error {
		_, err := to.Write(s.startFile)
		return err
	})
}
