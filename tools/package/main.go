// Command package creates the Debian packages loadstar and loadstar-agent from existing
// binaries, without Debian's tools. The same input gives the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

func main() {
	var b builder
	var epoch int64
	flag.StringVar(&b.root, "root", "..", "the repository")
	flag.StringVar(&b.bin, "bin", "", "folder with the two binaries")
	flag.StringVar(&b.stage, "stage", "", "folder with man pages, completions and third-party.txt")
	flag.StringVar(&b.arch, "arch", "amd64", "architecture in Debian's terms: amd64, arm64 or armhf")
	version := flag.String("version", "", "version, as git describe prints it")
	flag.Int64Var(&epoch, "epoch", 0, "time of all files, in seconds since 1970")
	out := flag.String("out", ".", "folder for the packages")
	flag.Parse()
	b.mtime = time.Unix(epoch, 0).UTC()
	b.version = debianVersion(*version, b.mtime)
	if err := b.all(*out); err != nil {
		fmt.Fprintln(os.Stderr, "package:", err)
		os.Exit(1)
	}
}

// described matches the output of git describe for a tag or a commit after a tag.
var described = regexp.MustCompile(`^v?(\d[0-9A-Za-z.]*(?:-[a-z]+[0-9.]*)?)(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// debianVersion converts a version to one that dpkg sorts correctly. A release candidate such
// as v1.2.0-rc1 comes before 1.2.0, and commits after a tag come after the tag. Without a tag,
// the order is that of the commits' times.
func debianVersion(v string, at time.Time) string {
	m := described.FindStringSubmatch(v)
	if m == nil || !strings.Contains(m[1], ".") {
		return "0~" + at.Format("20060102150405") + "." + regexp.MustCompile(`[^0-9A-Za-z.+~]`).ReplaceAllString(v, ".")
	}
	out := strings.ReplaceAll(m[1], "-", "~")
	if m[2] != "" {
		out += "+" + m[2] + ".g" + m[3]
	}
	if m[4] != "" {
		out += "+dirty"
	}
	return out
}

type builder struct {
	root, bin, stage, arch, version string
	mtime                           time.Time
	scratch                         string
}

func (b *builder) all(out string) (err error) {
	if b.scratch, err = os.MkdirTemp("", "package"); err != nil {
		return err
	}
	defer os.RemoveAll(b.scratch)
	for _, p := range []struct {
		name, text string
		contents   func() (files.Contents, error)
		recommends []string
	}{
		{"loadstar", "Federated training of electricity-load forecasters\n" +
			"Server, simulator and command line. Meters and buildings train on their own\n" +
			"readings, which never leave them; the server combines the shared model layers.", b.server, []string{"ca-certificates"}},
		{"loadstar-agent", "Load forecasts at the meter, and training for a Loadstar server\n" +
			"Takes in readings from files, HTTP or MQTT, forecasts at every step, and trains\n" +
			"for a server without sending readings. Small enough for a gateway.", b.agent, []string{"ca-certificates"}},
	} {
		contents, err := p.contents()
		if err != nil {
			return err
		}
		info := &nfpm.Info{
			Name: p.name, Arch: b.arch, Platform: "linux", Version: b.version, VersionSchema: "none", Section: "utils", Priority: "optional",
			Maintainer: "The Loadstar authors <loadstar@localhost>", Description: p.text, License: "Apache-2.0", MTime: b.mtime,
			Overridables: nfpm.Overridables{
				Contents: contents, Depends: []string{"adduser"}, Recommends: p.recommends,
				Scripts: nfpm.Scripts{
					PostInstall: b.from("deploy/debian", p.name+".postinst"),
					PreRemove:   b.from("deploy/debian", p.name+".prerm"),
					PostRemove:  b.from("deploy/debian", p.name+".postrm"),
				},
			},
		}
		if err := b.write(filepath.Join(out, fmt.Sprintf("%s_%s_%s.deb", p.name, b.version, b.arch)), info); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func (b *builder) write(path string, info *nfpm.Info) error {
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	var data bytes.Buffer
	if err := deb.Default.Package(info, &data); err != nil {
		return err
	}
	fmt.Printf("%s %.1f MB\n", filepath.Base(path), float64(data.Len())/1e6)
	return os.WriteFile(path, data.Bytes(), 0o644)
}

func (b *builder) from(path ...string) string {
	return filepath.Join(append([]string{b.root}, path...)...)
}

func (b *builder) server() (files.Contents, error) {
	c := contents{b: b, name: "loadstar"}
	c.add(filepath.Join(b.bin, "loadstar"), "/usr/bin/loadstar", 0o755)
	c.add(b.from("deploy/systemd/loadstar.service"), "/usr/lib/systemd/system/loadstar.service", 0o644)
	for _, unit := range []string{"loadstar-backup.service", "loadstar-backup.timer"} {
		c.add(b.from("deploy/systemd", unit), "/usr/lib/systemd/system/"+unit, 0o644)
	}
	c.put(b.from("deploy/debian/default"), "/etc/default/loadstar", files.TypeConfig, 0o640) // the file may contain the password of a database
	c.add(filepath.Join(b.stage, "completions/loadstar.bash"), "/usr/share/bash-completion/completions/loadstar", 0o644)
	c.add(filepath.Join(b.stage, "completions/loadstar.zsh"), "/usr/share/zsh/vendor-completions/_loadstar", 0o644)
	c.add(filepath.Join(b.stage, "completions/loadstar.fish"), "/usr/share/fish/vendor_completions.d/loadstar.fish", 0o644)
	c.each(filepath.Join(b.stage, "man"), "*.1", func(path, name string) {
		if name != "loadstar-agent.1" { // the other package contains it
			c.zip(path, "/usr/share/man/man1/"+name+".gz")
		}
	})
	c.documents()
	c.tree("docs", "/usr/share/doc/loadstar/docs", ".md")
	c.tree("plans", "/usr/share/doc/loadstar/examples/plans", ".yaml")
	c.tree("deploy/grafana", "/usr/share/doc/loadstar/examples/grafana", ".json")
	c.tree("deploy/prometheus", "/usr/share/doc/loadstar/examples/prometheus", ".yaml")
	return c.list, c.err
}

func (b *builder) agent() (files.Contents, error) {
	c := contents{b: b, name: "loadstar-agent"}
	c.add(filepath.Join(b.bin, "loadstar-agent"), "/usr/bin/loadstar-agent", 0o755)
	c.add(b.from("deploy/systemd/loadstar-agent.service"), "/usr/lib/systemd/system/loadstar-agent.service", 0o644)
	c.config(b.from("deploy/debian/agent.yaml"), "/etc/loadstar/agent.yaml")
	c.zip(filepath.Join(b.stage, "man/loadstar-agent.1"), "/usr/share/man/man1/loadstar-agent.1.gz")
	c.documents()
	c.add(b.from("docs/agent.md"), "/usr/share/doc/loadstar-agent/agent.md", 0o644)
	c.tree("docs/reference", "/usr/share/doc/loadstar-agent/reference", ".md")
	c.tree("deploy/home-assistant", "/usr/share/doc/loadstar-agent/examples/home-assistant", ".yaml")
	return c.list, c.err
}

// contents collects the files of a package. It records the first error.
type contents struct {
	b    *builder
	name string
	list files.Contents
	err  error
}

func (c *contents) put(source, to, kind string, mode fs.FileMode) {
	if _, err := os.Stat(source); err != nil && c.err == nil {
		c.err = err
	}
	c.list = append(c.list, &files.Content{
		Source: source, Destination: to, Type: kind, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: c.b.mtime, Owner: "root", Group: "root"},
	})
}

func (c *contents) add(source, to string, mode fs.FileMode) { c.put(source, to, files.TypeFile, mode) }

func (c *contents) config(source, to string) { c.put(source, to, files.TypeConfig, 0o644) }

// zip adds a compressed file, as Debian's policy requires for man pages and changelogs.
func (c *contents) zip(source, to string) {
	data, err := os.ReadFile(source)
	if err == nil {
		var buf bytes.Buffer
		w, _ := gzip.NewWriterLevel(&buf, gzip.BestCompression) // the level is valid
		if _, err = w.Write(data); err == nil {
			err = w.Close()
		}
		source = filepath.Join(c.b.scratch, c.name+"-"+filepath.Base(to))
		if err == nil {
			err = os.WriteFile(source, buf.Bytes(), 0o644)
		}
	}
	if err != nil && c.err == nil {
		c.err = err
	}
	c.add(source, to, 0o644)
}

func (c *contents) each(dir, pattern string, do func(path, name string)) {
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("there is no %s in %s", pattern, dir)
	}
	if err != nil && c.err == nil {
		c.err = err
	}
	for _, p := range paths {
		do(p, filepath.Base(p))
	}
}

// documents adds the files that every package must have under /usr/share/doc.
func (c *contents) documents() {
	to := "/usr/share/doc/" + c.name + "/"
	c.add(c.b.from("deploy/debian/copyright"), to+"copyright", 0o644)
	c.add(filepath.Join(c.b.stage, c.name+".third-party.txt"), to+"third-party.txt", 0o644)
	c.add(c.b.from("README.md"), to+"README.md", 0o644)
	c.zip(c.b.from("CHANGELOG.md"), to+"changelog.gz")
}

// tree adds the files with the given extension in a folder of the repository.
func (c *contents) tree(from, to, ending string) {
	base := c.b.from(from)
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		rel, err := filepath.Rel(base, path)
		c.add(path, to+"/"+filepath.ToSlash(rel), 0o644)
		return err
	})
	if err != nil && c.err == nil {
		c.err = err
	}
}
