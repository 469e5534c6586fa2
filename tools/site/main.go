// Command site writes the documentation as web pages. It converts the Markdown files of the
// repository, and adds a menu and a search function. The pages make no requests to other sites.
// A dead link or anchor is an error. The pages work from a folder as well as from a web server.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

var (
	//go:embed page.html
	pageText string
	//go:embed style.css
	style []byte
	//go:embed search.js
	script []byte
)

func main() {
	root := flag.String("root", "..", "the repository")
	out := flag.String("out", "site", "folder to write")
	flag.Parse()
	s := site{root: *root, out: *out, pages: map[string]*page{}}
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d pages in %s\n", len(s.pages), *out)
}

// page is a Markdown file. Paths are relative to the repository, with slashes.
type page struct {
	path    string
	source  []byte
	doc     ast.Node
	title   string
	anchors map[string]bool
	words   string
}

// html returns the path of the page in the site.
func (p *page) html() string {
	dir, file := path.Split(p.path)
	if file == "README.md" {
		return dir + "index.html"
	}
	return strings.TrimSuffix(p.path, ".md") + ".html"
}

type site struct {
	root, out string
	pages     map[string]*page
	files     map[string]bool // other files that pages link to
	problems  []error
}

func (s *site) run() error {
	if err := s.read(); err != nil {
		return err
	}
	s.files = map[string]bool{}
	for _, name := range s.names() {
		s.links(s.pages[name])
	}
	if err := errors.Join(s.problems...); err != nil {
		return err
	}
	if err := os.RemoveAll(s.out); err != nil {
		return err
	}
	menu := s.menu()
	t := template.Must(template.New("page").Parse(pageText))
	for _, name := range s.names() {
		if err := s.write(t, s.pages[name], menu); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name := range s.files {
		data, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return err
		}
		if err := s.put(name, data); err != nil {
			return err
		}
	}
	index, err := s.index()
	if err != nil {
		return err
	}
	// The index is also written as a script, because a page that is opened from a folder cannot
	// fetch JSON.
	if err := s.put("assets/index.js", append(append([]byte("window.searchIndex = "), index...), ";\n"...)); err != nil {
		return err
	}
	return errors.Join(s.put("assets/index.json", index), s.put("assets/style.css", style), s.put("assets/search.js", script))
}

func (s *site) put(name string, data []byte) error {
	to := filepath.Join(s.out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

func (s *site) names() []string { return slices.Sorted(maps.Keys(s.pages)) }

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithUnsafe()), // the pages are our own and contain HTML comments
)

// read parses README.md, CHANGELOG.md, CONTRIBUTING.md and all pages under docs and papers.
func (s *site) read() error {
	add := func(name string) error {
		source, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return err
		}
		p := &page{path: name, source: source, anchors: map[string]bool{}}
		ids := &headings{seen: p.anchors}
		p.doc = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
		var words strings.Builder
		err = ast.Walk(p.doc, func(n ast.Node, enter bool) (ast.WalkStatus, error) {
			if h, ok := n.(*ast.Heading); ok && enter && h.Level == 1 && p.title == "" {
				p.title = plain(h, source)
			}
			if t, ok := n.(*ast.Text); ok && enter {
				words.Write(t.Value(source))
				words.WriteByte(' ')
			}
			if b, ok := n.(*ast.FencedCodeBlock); ok && enter {
				words.Write(b.Lines().Value(source))
			}
			return ast.WalkContinue, nil
		})
		p.words = words.String()
		s.pages[name] = p
		return err
	}
	for _, name := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md"} {
		if err := add(name); err != nil {
			return err
		}
	}
	for _, dir := range []string{"docs", "papers"} {
		err := filepath.WalkDir(filepath.Join(s.root, dir), func(at string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(at, ".md") {
				return err
			}
			rel, err := filepath.Rel(s.root, at)
			if err != nil {
				return err
			}
			return add(filepath.ToSlash(rel))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// plain returns the text of a node without its markup.
func plain(n ast.Node, source []byte) string {
	var out strings.Builder
	_ = ast.Walk(n, func(n ast.Node, enter bool) (ast.WalkStatus, error) { // the function never returns an error
		if t, ok := n.(*ast.Text); ok && enter {
			out.Write(t.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return out.String()
}

// headings gives headings the same anchors as code hosts do, so that links work both there and
// on the site.
type headings struct{ seen map[string]bool }

var unwanted = regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)

func (h *headings) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.ReplaceAll(unwanted.ReplaceAllString(strings.ToLower(strings.TrimSpace(string(value))), ""), " ", "-")
	for base, i := id, 1; h.seen[id]; i++ {
		id = fmt.Sprintf("%s-%d", base, i)
	}
	h.seen[id] = true
	return []byte(id)
}

func (h *headings) Put(value []byte) { h.seen[string(value)] = true }

// links checks the links of a page, and converts links to Markdown files to links within the
// site.
func (s *site) links(p *page) {
	_ = ast.Walk(p.doc, func(n ast.Node, enter bool) (ast.WalkStatus, error) { // the function never returns an error
		if !enter {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Link:
			n.Destination = []byte(s.link(p, string(n.Destination)))
		case *ast.Image:
			if strings.Contains(string(n.Destination), "://") {
				s.problems = append(s.problems, fmt.Errorf("%s: the picture %s is outside of the repository", p.path, n.Destination))
			}
			n.Destination = []byte(s.link(p, string(n.Destination)))
		}
		return ast.WalkContinue, nil
	})
}

func (s *site) link(p *page, to string) string {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return to
	}
	file, anchor, marked := strings.Cut(to, "#")
	target := p.path
	if file != "" {
		target = path.Join(path.Dir(p.path), file)
	}
	if strings.HasPrefix(target, "..") {
		s.problems = append(s.problems, fmt.Errorf("%s: %s leaves the repository", p.path, to))
		return to
	}
	if found := s.pages[target]; found != nil {
		if marked && !found.anchors[anchor] {
			s.problems = append(s.problems, fmt.Errorf("%s: %s has no heading #%s", p.path, target, anchor))
		}
		return relative(p, found.html()) + mark(anchor)
	}
	info, err := os.Stat(filepath.Join(s.root, target))
	if err != nil {
		s.problems = append(s.problems, fmt.Errorf("%s: dead link %s", p.path, to))
		return to
	}
	if info.IsDir() {
		if found := s.pages[path.Join(target, "README.md")]; found != nil {
			return relative(p, found.html())
		}
		// A folder without a page of its own gets a list of its files.
		name := path.Join(target, "index.html")
		s.listing(target, name)
		return relative(p, name)
	}
	s.files[target] = true
	return relative(p, target)
}

// listing creates a page that lists a folder of the repository.
func (s *site) listing(dir, name string) {
	key := path.Join(dir, "README.md")
	if s.pages[key] != nil {
		return
	}
	entries, err := os.ReadDir(filepath.Join(s.root, dir))
	if err != nil {
		s.problems = append(s.problems, err)
		return
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\n", dir)
	for _, e := range entries {
		fmt.Fprintf(&out, "- [%s](%s)\n", e.Name(), e.Name())
	}
	p := &page{path: key, source: []byte(out.String()), title: dir, anchors: map[string]bool{}}
	p.doc = markdown.Parser().Parse(text.NewReader(p.source))
	s.pages[key] = p
	s.links(p)
}

func relative(p *page, to string) string {
	rel, err := filepath.Rel(filepath.FromSlash(path.Dir(p.html())), filepath.FromSlash(to))
	if err != nil {
		return to
	}
	return filepath.ToSlash(rel)
}

func mark(anchor string) string {
	if anchor == "" {
		return ""
	}
	return "#" + anchor
}

// group is a part of the menu.
type group struct {
	Title string
	Items []item
}

type item struct {
	Title, Path string
	Here        bool
}

// menu reads the groups and the order of pages from docs/README.md. Each of its second-level
// headings is a group of the pages to which it links.
func (s *site) menu() []group {
	var out []group
	index := s.pages["docs/README.md"]
	if index == nil {
		return nil
	}
	seen := map[string]bool{}
	_ = ast.Walk(index.doc, func(n ast.Node, enter bool) (ast.WalkStatus, error) { // the function never returns an error
		if !enter {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				out = append(out, group{Title: plain(n, index.source)})
			}
		case *ast.Link:
			to := path.Join("docs", string(n.Destination))
			if len(out) > 0 && strings.HasSuffix(to, ".html") && !seen[to] {
				seen[to] = true
				g := &out[len(out)-1]
				g.Items = append(g.Items, item{Title: plain(n, index.source), Path: to})
			}
		}
		return ast.WalkContinue, nil
	})
	return out
}

func (s *site) write(t *template.Template, p *page, menu []group) error {
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.source, p.doc); err != nil {
		return err
	}
	var own []group
	for _, g := range menu {
		mine := group{Title: g.Title}
		for _, i := range g.Items {
			mine.Items = append(mine.Items, item{i.Title, relative(p, i.Path), i.Path == p.html()})
		}
		own = append(own, mine)
	}
	base := relative(p, "x")
	base = base[:len(base)-1]
	var out bytes.Buffer
	err := t.Execute(&out, map[string]any{
		"Title": p.title, "Base": base, "Menu": own, "Body": template.HTML(tables(body.String())), "Home": base + "index.html", "Docs": base + "docs/index.html",
	})
	if err != nil {
		return err
	}
	return s.put(p.html(), out.Bytes())
}

// tables puts each table into a scrollable box, so that a wide table does not make a page wider
// on a phone.
func tables(body string) string {
	body = strings.ReplaceAll(body, "<table>", `<div class="wide" role="region" aria-label="Table" tabindex="0"><table>`)
	return strings.ReplaceAll(body, "</table>", "</table></div>")
}

// entry is a page in the search index.
type entry struct {
	Title string `json:"title"`
	Path  string `json:"path"`
	Text  string `json:"text"`
}

const mostText = 4000 // maximum bytes of a page's text in the index; each word of the rest is listed once

func (s *site) index() ([]byte, error) {
	var all []entry
	for _, name := range s.names() {
		p := s.pages[name]
		var text []string
		size, seen := 0, map[string]bool{}
		for _, w := range strings.Fields(p.words) {
			if size > mostText && seen[strings.ToLower(w)] {
				continue
			}
			seen[strings.ToLower(w)] = true
			size += len(w) + 1
			text = append(text, w)
		}
		all = append(all, entry{p.title, p.html(), strings.Join(text, " ")})
	}
	return json.Marshal(all)
}
