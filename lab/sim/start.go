package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"loadstar/fed/recipe"
	"loadstar/internal/disk"
)

// copyOfStart is the name of the file with the weights from which the run started, in the run's
// folder. A resumed run reads it, so the original may change or disappear.
const copyOfStart = "start.safetensors"

// readStart makes the run start from the shared weights in the file or run folder that the
// plan names. It returns the content of the file, or nil if the plan names none.
func (s *simulation) readStart() ([]byte, error) {
	if s.Plan.Start == "" || recipe.StartsOnServerData(s.Plan) {
		return nil, nil
	}
	file, err := s.storedStart()
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
	return file, s.startFrom(file)
}

// storedStart returns the copy of the initial weights in the folder of a resumed run.
func (c *Config) storedStart() ([]byte, error) {
	if !c.Resume {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(filepath.Join(c.Dir, copyOfStart))
}

// startFrom makes the run start from the shared weights in the content of a file.
func (s *simulation) startFrom(file []byte) error {
	problem := s.setup.Problem
	whole := make([]float32, problem.Model.Net().Weights())
	if _, err := problem.Model.ReadWeights(bytes.NewReader(file), whole, problem.Partition.Shared()); err != nil {
		return fmt.Errorf("start: %s does not have the shared layers of the plan: %w", s.Plan.Start, err)
	}
	shared := make([]float32, problem.Partition.SharedLen())
	problem.Partition.Cut(whole, shared, make([]float32, problem.Partition.PersonalLen()))
	s.setup = s.setup.From(shared)
	sum := sha256.Sum256(file)
	s.startSum = hex.EncodeToString(sum[:])
	return nil
}

// prepareStart trains the initial weights on the server's data, if the plan requires this and
// the folder of a resumed run does not contain them yet. It stores the weights from which the
// run starts in the run's folder.
func (s *simulation) prepareStart(ctx context.Context) error {
	if !recipe.StartsOnServerData(s.Plan) {
		return s.keepStart()
	}
	file, err := s.storedStart()
	if errors.Is(err, fs.ErrNotExist) {
		file, err = s.trainStart(ctx)
	}
	if err != nil {
		return err
	}
	if err := s.startFrom(file); err != nil {
		return err
	}
	s.startFile, s.server, s.summary.Start = file, s.setup.NewServer(), s.startSum
	return s.keepStart()
}

// trainStart returns the content of a file with weights trained on the server's data.
func (s *simulation) trainStart(ctx context.Context) ([]byte, error) {
	data, err := s.serverExamples()
	if err != nil {
		return nil, err
	}
	shared, err := s.setup.TrainStart(ctx, s.Kernel, data)
	if err != nil {
		return nil, s.interrupted(ctx, err)
	}
	var file bytes.Buffer
	err = s.setup.Problem.WriteShared(&file, shared, s.Plan.Name, 0)
	return file.Bytes(), err
}

// keepStart copies the weights from which the run starts to the run's folder.
func (s *simulation) keepStart() error {
	if s.startFile == nil {
		return nil
	}
	return disk.Write(filepath.Join(s.folder.Dir, copyOfStart), func(to *os.File) error {
		_, err := to.Write(s.startFile)
		return err
	})
}
