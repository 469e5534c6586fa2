// Command sbom writes the contents of a built binary: a bill of materials in the CycloneDX
// format, and the licenses of its modules as text. It reads the build information inside
// the binary, so the lists cannot differ from what was linked. Packages of the JavaScript
// bundles come from their lock files.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	var s sbom
	var epoch int64
	var locks string
	flag.StringVar(&s.binary, "binary", "", "the binary")
	flag.StringVar(&s.version, "version", "", "its version")
	flag.StringVar(&locks, "npm", "", "package-lock.json of each embedded bundle, separated by commas")
	flag.Int64Var(&epoch, "epoch", 0, "time of the document, in seconds since 1970")
	flag.StringVar(&s.out, "out", "", "bill of materials to write")
	flag.StringVar(&s.licenses, "licenses", "", "text with the licenses to write")
	flag.Parse()
	s.at = time.Unix(epoch, 0).UTC()
	if locks != "" {
		s.locks = strings.Split(locks, ",")
	}
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

type sbom struct {
	binary, version, out, licenses string
	locks                          []string
	at                             time.Time
}

func (s *sbom) run() error {
	info, err := buildinfo.ReadFile(s.binary)
	if err != nil {
		return err
	}
	packages, err := s.npm()
	if err != nil {
		return err
	}
	if s.out != "" {
		if err := s.materials(info, packages); err != nil {
			return err
		}
	}
	if s.licenses != "" {
		return s.texts(info, packages)
	}
	return nil
}

// npmPackage is a package that is included in a bundle.
type npmPackage struct{ name, version, license string }

// npm returns the packages in the lock files, except for those that are used only for
// development.
func (s *sbom) npm() ([]npmPackage, error) {
	seen := map[npmPackage]bool{}
	for _, path := range s.locks {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var lock struct {
			Packages map[string]struct {
				Version, License string
				Dev              bool
			}
		}
		if err := json.Unmarshal(data, &lock); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for at, p := range lock.Packages {
			i := strings.LastIndex(at, "node_modules/")
			if i < 0 || p.Dev {
				continue
			}
			seen[npmPackage{at[i+len("node_modules/"):], p.Version, p.License}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b npmPackage) int { return strings.Compare(a.name+"@"+a.version, b.name+"@"+b.version) }), nil
}

func (s *sbom) materials(info *buildinfo.BuildInfo, packages []npmPackage) error {
	name := filepath.Base(info.Path)
	top := cdx.Component{Type: cdx.ComponentTypeApplication, Name: name, Version: s.version, BOMRef: name, Licenses: licenses("Apache-2.0")}
	for _, set := range info.Settings {
		if slices.Contains([]string{"GOOS", "GOARCH", "GOARM", "vcs.revision"}, set.Key) {
			if top.Properties == nil {
				top.Properties = &[]cdx.Property{}
			}
			*top.Properties = append(*top.Properties, cdx.Property{Name: "go:" + set.Key, Value: set.Value})
		}
	}
	list := []cdx.Component{{Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, BOMRef: "std", PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"), Licenses: licenses("BSD-3-Clause")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, BOMRef: url, PackageURL: url}
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		list = append(list, c)
	}
	for _, p := range packages {
		url := "pkg:npm/" + strings.ReplaceAll(p.name, "@", "%40") + "@" + p.version
		list = append(list, cdx.Component{Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version, BOMRef: url, PackageURL: url, Licenses: licenses(p.license)})
	}
	var refs []string
	for _, c := range list {
		refs = append(refs, c.BOMRef)
	}
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Timestamp: s.at.Format(time.RFC3339), Component: &top}
	b.Components = &list
	b.Dependencies = &[]cdx.Dependency{{Ref: name, Dependencies: &refs}}
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b); err != nil {
		return err
	}
	return os.WriteFile(s.out, out.Bytes(), 0o644)
}

func licenses(expression string) *cdx.Licenses {
	if expression == "" {
		return nil
	}
	return &cdx.Licenses{{Expression: expression}}
}

// licenseFile matches the names of files with a license or its notices.
var licenseFile = regexp.MustCompile(`(?i)^((?:un)?licen[cs]e|copying|notice|patents)([.\-].*)?$`)

// texts writes the licenses of all modules. A module without a license is an error, because
// Loadstar must not distribute it.
func (s *sbom) texts(info *buildinfo.BuildInfo, packages []npmPackage) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s contains the following modules, with these licenses.\n", filepath.Base(info.Path))
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	if err := text(&out, "Go "+info.GoVersion, strings.TrimSpace(string(root))); err != nil {
		return err
	}
	modules := []string{"list", "-C", "..", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}
	for _, m := range info.Deps {
		modules = append(modules, m.Path)
	}
	dirs, err := exec.Command("go", modules...).Output()
	if err != nil {
		return fmt.Errorf("the folders of the modules: %w", err)
	}
	for line := range strings.Lines(string(dirs)) {
		title, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if err := text(&out, title, dir); err != nil {
			return err
		}
	}
	if len(packages) > 0 {
		fmt.Fprintf(&out, "\n%s\nJavaScript packages in the pages:\n", strings.Repeat("=", 80))
		for _, p := range packages {
			fmt.Fprintf(&out, "%s %s: %s\n", p.name, p.version, p.license)
		}
	}
	return os.WriteFile(s.licenses, out.Bytes(), 0o644)
}

func text(out *bytes.Buffer, title, dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, f := range files {
		if f.IsDir() || !licenseFile.MatchString(f.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(out, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("=", 80), title, f.Name(), bytes.TrimSpace(data))
	}
	if !found && strings.HasPrefix(title, "Go ") { // Debian and other distributions put the license elsewhere
		fmt.Fprintf(out, "\n%s\n%s: BSD-3-Clause, The Go Authors\n", strings.Repeat("=", 80), title)
		return nil
	}
	if !found {
		return fmt.Errorf("%s has no license file in %s", title, dir)
	}
	return nil
}
