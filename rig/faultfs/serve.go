//go:build linux

package faultfs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"loadstar/internal/proc"
)

// Child is the argument with which a program calls Serve instead of doing its usual work.
const Child = "serve-faulty-disks"

// request is a line from a Server to its child.
type request struct {
	Do     string `json:"do"` // new, cut, set, settle
	At     string `json:"at"`
	Folder string `json:"folder,omitempty"`
	Seed   uint64 `json:"seed,omitempty"`
	Fault  Fault  `json:"fault,omitzero"`
}

type answer struct {
	Error string `json:"error,omitempty"`
	Loss  Loss   `json:"loss,omitzero"`
}

// Serve serves disks for the Server that has started this process, until the input ends.
// Then it unmounts them.
func Serve(in io.Reader, out io.Writer) error {
	disks := map[string]*Disk{}
	lines, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	var err error
	for err == nil {
		var q request
		if err = lines.Decode(&q); err != nil {
			break
		}
		var a answer
		if err := serve(disks, q, &a); err != nil {
			a.Error = err.Error()
		}
		err = answers.Encode(a)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	for _, d := range disks {
		err = errors.Join(err, d.Close())
	}
	return err
}

func serve(disks map[string]*Disk, q request, a *answer) (err error) {
	d := disks[q.At]
	if d == nil && q.Do != "new" {
		return fmt.Errorf("there is no disk at %s", q.At)
	}
	switch q.Do {
	case "new":
		if d, err = New(q.Folder, q.At); err == nil {
			disks[q.At] = d
		}
	case "cut":
		a.Loss, err = d.Cut(q.Seed)
	case "set":
		d.Set(q.Fault)
	case "settle":
		d.Settle()
	default:
		err = fmt.Errorf("unknown request %q", q.Do)
	}
	return err
}

// Server serves disks in a child process. It is safe for concurrent use.
type Server struct {
	child *proc.Child
	in    io.WriteCloser

	mu      sync.Mutex
	answers *json.Decoder
	write   *json.Encoder
}

// Start starts the child process, which is this program with the argument Child.
func Start() (*Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, Child)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	read, written, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer written.Close() // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = written, os.Stderr
	// The child unmounts its disks when its input ends; a signal would leave them mounted.
	child, err := proc.Start(cmd, syscall.Signal(0))
	if err != nil {
		read.Close()
		return nil, err
	}
	return &Server{child: child, in: in, answers: json.NewDecoder(read), write: json.NewEncoder(in)}, nil
}

// Close unmounts all disks.
func (s *Server) Close() error {
	err := s.in.Close()
	<-s.child.Done()
	if code := s.child.State().ExitCode(); code != 0 {
		err = errors.Join(err, fmt.Errorf("the process that served the disks ended with code %d", code))
	}
	return err
}

func (s *Server) call(q request) (Loss, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a answer
	if err := errors.Join(s.write.Encode(q), s.answers.Decode(&a)); err != nil {
		return Loss{}, fmt.Errorf("the process that serves the disks does not respond: %w", err)
	}
	if a.Error != "" {
		return Loss{}, errors.New(a.Error)
	}
	return a.Loss, nil
}

// New creates a disk; see the function New.
func (s *Server) New(folder, at string) error {
	_, err := s.call(request{Do: "new", Folder: folder, At: at})
	return err
}

// Cut cuts the power of a disk; see Disk.Cut.
func (s *Server) Cut(at string, seed uint64) (Loss, error) {
	return s.call(request{Do: "cut", At: at, Seed: seed})
}

// Set replaces a disk's faults.
func (s *Server) Set(at string, f Fault) error {
	_, err := s.call(request{Do: "set", At: at, Fault: f})
	return err
}

// Settle makes everything on a disk durable.
func (s *Server) Settle(at string) error {
	_, err := s.call(request{Do: "settle", At: at})
	return err
}
