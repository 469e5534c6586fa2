// Command links checks the links of the repository's Markdown files. A link to a missing file or
// heading, a link that leaves the repository, and a picture from another site are errors.
package main

import (
	"errors"
	"flag"
	"fmt"
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
	"github.com/yuin/goldmark/text"
)

func main() {
	root := flag.String("root", "..", "the repository")
	flag.Parse()
	n, err := check(*root)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("the links of %d pages lead somewhere\n", n)
}

// page is a Markdown file. Paths are relative to the repository, with slashes.
type page struct {
	path    string
	doc     ast.Node
	anchors map[string]bool
}

// check returns the number of pages, and an error that names all wrong links.
func check(root string) (int, error) {
	pages, err := read(root)
	if err != nil {
		return 0, err
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		p := pages[name]
		_ = ast.Walk(p.doc, func(n ast.Node, enter bool) (ast.WalkStatus, error) { // the function never returns an error
			to := ""
			switch n := n.(type) {
			case *ast.Link:
				to = string(n.Destination)
			case *ast.Image:
				if to = string(n.Destination); enter && strings.Contains(to, "://") {
					problems = append(problems, fmt.Errorf("%s: the picture %s is outside of the repository", p.path, to))
				}
			}
			if enter && to != "" {
				if err := follow(root, pages, p, to); err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", p.path, err))
				}
			}
			return ast.WalkContinue, nil
		})
	}
	return len(pages), errors.Join(problems...)
}

// read parses README.md, CHANGELOG.md, CONTRIBUTING.md and all pages under docs and papers.
func read(root string) (map[string]*page, error) {
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	pages := map[string]*page{}
	for _, start := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "papers"} {
		err := filepath.WalkDir(filepath.Join(root, start), func(at string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(at, ".md") {
				return err
			}
			source, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, at)
			if err != nil {
				return err
			}
			p := &page{path: filepath.ToSlash(name), anchors: map[string]bool{}}
			p.doc = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(&headings{p.anchors}))))
			pages[p.path] = p
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// headings gives headings the same anchors as code hosts do.
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

// follow returns an error if a link of a page leads nowhere.
func follow(root string, pages map[string]*page, p *page, to string) error {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return nil
	}
	file, anchor, marked := strings.Cut(to, "#")
	target := p.path
	if file != "" {
		target = path.Join(path.Dir(p.path), file)
	}
	if strings.HasPrefix(target, "..") {
		return fmt.Errorf("%s leaves the repository", to)
	}
	if found := pages[target]; found != nil {
		if marked && !found.anchors[anchor] {
			return fmt.Errorf("%s has no heading #%s", target, anchor)
		}
		return nil
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil {
		return fmt.Errorf("dead link %s", to)
	}
	return nil
}
