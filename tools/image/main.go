// Command image creates container images without a container daemon, as an OCI layout with
// an index over the platforms. It also unpacks an image into the bundle of an OCI runtime.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the ID of the user "nonroot" in common base images.
const user = 65532

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == "unpack" {
		err = unpack(os.Args[2:])
	} else {
		err = create(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func create(args []string) error {
	f := flag.NewFlagSet("image", flag.ExitOnError)
	bin := f.String("bin", "", "folder with a folder of binaries for each platform, such as linux-arm64")
	program := f.String("program", "loadstar", "the program: loadstar or loadstar-agent")
	version := f.String("version", "", "version, for the labels")
	revision := f.String("revision", "", "commit, for the labels")
	epoch := f.Int64("epoch", 0, "time of all files, in seconds since 1970")
	roots := f.String("roots", "/etc/ssl/certs/ca-certificates.crt", "root certificates to include")
	out := f.String("out", "", "the layout: a folder that does not exist, or a file that ends in .tar")
	if err := f.Parse(args); err != nil {
		return err
	}
	b := builder{program: *program, version: *version, revision: *revision, at: time.Unix(*epoch, 0).UTC()}
	var err error
	if b.roots, err = certificates(*roots); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range []v1.Platform{
		{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}, {OS: "linux", Architecture: "arm", Variant: "v7"},
	} {
		path := filepath.Join(*bin, p.OS+"-"+p.Architecture+p.Variant, *program)
		if _, err := os.Stat(path); os.IsNotExist(err) {
			continue // the build has fewer platforms
		}
		i, err := b.image(path, p)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: &p}})
	}
	if m, err := index.IndexManifest(); err != nil || len(m.Manifests) == 0 {
		return fmt.Errorf("%s has no binary %s for a platform: %v", *bin, *program, err)
	}
	return write(index, *out, b.at, *version)
}

// certificates returns the root certificates in a file. It parses them, so that a file with
// other content is detected.
func certificates(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("root certificates (install ca-certificates): %w", err)
	}
	n := 0
	for rest := data; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", path, n+1, err)
		}
	}
	if n < 10 {
		return nil, fmt.Errorf("%s has %d certificates, want the roots of the system", path, n)
	}
	return data, nil
}

type builder struct {
	program, version, revision string
	at                         time.Time
	roots                      []byte
}

func (b *builder) image(path string, p v1.Platform) (v1.Image, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	data := "/data"
	layers := []v1.Layer{}
	for _, part := range [][]entry{
		{
			{name: "etc/", mode: 0o755},
			{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/:/sbin/nologin\nloadstar:x:65532:65532:loadstar:/data:/sbin/nologin\n")},
			{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nloadstar:x:65532:\n")},
			{name: "etc/ssl/", mode: 0o755},
			{name: "etc/ssl/certs/", mode: 0o755},
			{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: b.roots},
			{name: "tmp/", mode: 0o1777},
			{name: "data/", mode: 0o700, owner: user},
		},
		{{name: "usr/", mode: 0o755}, {name: "usr/bin/", mode: 0o755}, {name: "usr/bin/" + b.program, mode: 0o755, data: program}},
	} {
		text, err := b.tar(part)
		if err != nil {
			return nil, err
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	i := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	for _, l := range layers {
		if i, err = mutate.Append(i, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: b.at}, CreatedBy: "loadstar image"}}); err != nil {
			return nil, err
		}
	}
	c := &v1.ConfigFile{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, Created: v1.Time{Time: b.at}}
	old, err := i.ConfigFile()
	if err != nil {
		return nil, err
	}
	c.RootFS, c.History = old.RootFS, old.History
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/" + b.program}, User: fmt.Sprintf("%d:%d", user, user), WorkingDir: data,
		Env:     []string{"PATH=/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", "HOME=/data"},
		Volumes: map[string]struct{}{data: {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": b.program, "org.opencontainers.image.version": b.version,
			"org.opencontainers.image.revision": b.revision, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created": b.at.Format(time.RFC3339),
		},
	}
	if b.program == "loadstar" {
		c.Config.ExposedPorts = map[string]struct{}{"7443/tcp": {}, "7445/tcp": {}}
		c.Config.Cmd = []string{"serve", "--dir", data}
	} else {
		c.Config.Cmd = []string{"run", "-config", data + "/agent.yaml"}
	}
	return mutate.ConfigFile(i, c)
}

type entry struct {
	name  string // with a slash at the end for a folder
	mode  fs.FileMode
	owner int
	data  []byte
}

func (b *builder) tar(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(e.data)), ModTime: b.at, Uid: e.owner, Gid: e.owner, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// write writes an index as an OCI layout that has one reference, whose name is the version.
func write(index v1.ImageIndex, out string, at time.Time, version string) error {
	dir, archive := out, strings.HasSuffix(out, ".tar")
	if archive {
		var err error
		if dir, err = os.MkdirTemp("", "image"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := p.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version})); err != nil {
		return err
	}
	if !archive {
		return nil
	}
	return pack(dir, out, at)
}

// pack writes a folder as a tar file, in the order of file names, with the same modification
// time for all files.
func pack(dir, out string, at time.Time) (err error) {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(data)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
