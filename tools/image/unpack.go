package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// unpack writes an image from a layout as the bundle of an OCI runtime, which is a folder
// rootfs and a config.json. Arguments replace the image's own command. unpack is for tests. The
// layout must have been written by this program.
func unpack(args []string) error {
	f := flag.NewFlagSet("image unpack", flag.ExitOnError)
	from := f.String("layout", "", "the layout, a folder")
	out := f.String("out", "", "the bundle, a folder that does not exist")
	host := f.Bool("host-network", false, "use the network of the machine")
	var binds binds
	f.Var(&binds, "bind", "mount FROM:TO read-write; may be repeated")
	if err := f.Parse(args); err != nil {
		return err
	}
	i, err := find(*from)
	if err != nil {
		return err
	}
	root := filepath.Join(*out, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	r := mutate.Extract(i)
	defer r.Close()
	tar := exec.Command("tar", "-C", root, "-xf", "-")
	tar.Stdin, tar.Stderr = r, os.Stderr
	if err := tar.Run(); err != nil {
		return fmt.Errorf("unpacking the layers: %w", err)
	}
	c, err := i.ConfigFile()
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(bundle(c.Config, f.Args(), *host, binds), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*out, "config.json"), data, 0o644)
}

type binds []string

func (b *binds) String() string     { return strings.Join(*b, " ") }
func (b *binds) Set(s string) error { *b = append(*b, s); return nil }

// find returns the image for amd64 in a layout's index.
func find(path string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) != 1 {
		return nil, fmt.Errorf("%s has %d references, want 1", path, len(m.Manifests))
	}
	if index, err = index.ImageIndex(m.Manifests[0].Digest); err != nil {
		return nil, err
	}
	if m, err = index.IndexManifest(); err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if d.Platform != nil && d.Platform.Architecture == "amd64" {
			return index.Image(d.Digest)
		}
	}
	return nil, fmt.Errorf("%s has no image for amd64", path)
}

// bundle returns the runtime's configuration, with no capabilities, a read-only root file
// system, and the user of the image.
func bundle(c v1.Config, args []string, host bool, binds []string) map[string]any {
	if len(args) == 0 {
		args = c.Cmd
	}
	var id int
	fmt.Sscanf(c.User, "%d:", &id)
	mounts := []map[string]any{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=1777"}},
	}
	for _, b := range binds {
		from, to, _ := strings.Cut(b, ":")
		mounts = append(mounts, map[string]any{"destination": to, "type": "bind", "source": from, "options": []string{"rbind", "rw"}})
	}
	spaces := []map[string]string{{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}}
	if !host {
		spaces = append(spaces, map[string]string{"type": "network"})
	}
	return map[string]any{
		"ociVersion": "1.0.2",
		"root":       map[string]any{"path": "rootfs", "readonly": true},
		"process": map[string]any{
			"user": map[string]int{"uid": id, "gid": id}, "args": append(append([]string{}, c.Entrypoint...), args...), "env": c.Env,
			"cwd": c.WorkingDir, "noNewPrivileges": true, "capabilities": map[string]any{},
		},
		"mounts": mounts,
		"linux":  map[string]any{"namespaces": spaces},
	}
}
