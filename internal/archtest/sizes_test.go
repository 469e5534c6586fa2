package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits on the sizes of types and functions, because a reader must keep a whole type or
// function in mind. Larger ones can be divided.
const (
	maxMethods = 45 // maximum for a type, including unexported methods
	maxLines   = 100
	// A command's constructor contains the help and the flags. The command's work belongs in a
	// method.
	maxConstructor = 60
	maxBranches    = 25 // if, for, case, && and ||, except in nested function literals, which are counted separately
)

// TestSizes checks the sizes of types and functions outside of tests and generated code.
func TestSizes(t *testing.T) {
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	methods := map[string]int{}
	large := map[string]string{}
	constructors := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"node_modules", "dist", "testdata"}, d.Name())) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		for _, decl := range file.Decls {
			name := dir
			if f, ok := decl.(*ast.FuncDecl); ok {
				if typ := receiver(f); typ != "" {
					name += "." + typ
					methods[name]++
				}
				name += "." + f.Name.Name
			}
			for i, f := range functions(decl) {
				part := name
				if _, literal := f.(*ast.FuncLit); literal {
					part = fmt.Sprintf("%s func %d", name, i)
				}
				lines, most := fset.Position(f.End()).Line-fset.Position(f.Pos()).Line+1, maxLines
				if constructs(f) {
					constructors++
					most = maxConstructor
				}
				if n := branches(f); lines > most || n > maxBranches {
					large[part] = fmt.Sprintf("%d lines, %d branches", lines, n)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range methods {
		if n > maxMethods {
			large[name] = fmt.Sprintf("%d methods", n)
		}
	}
	if len(methods) < 500 {
		t.Errorf("only %d types with methods were found", len(methods))
	}
	if constructors < 80 {
		t.Errorf("only %d constructors of commands were found", constructors)
	}
	for name, size := range large {
		t.Errorf("%s has %s: divide it (at most %d methods, %d lines, %d lines for a constructor of a command, %d branches)", name, size, maxMethods, maxLines, maxConstructor, maxBranches)
	}
}

// constructs reports whether f is declared to return only a *Command.
func constructs(f ast.Node) bool {
	decl, ok := f.(*ast.FuncDecl)
	if !ok || decl.Type.Results == nil || len(decl.Type.Results.List) != 1 {
		return false
	}
	star, ok := decl.Type.Results.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	switch x := star.X.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == "Command"
	case *ast.Ident:
		return x.Name == "Command"
	}
	return false
}

// receiver returns the name of the type whose method f is, or "".
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	typ := f.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// functions returns the declared function, if decl is one, and the function literals in decl.
func functions(decl ast.Decl) []ast.Node {
	var all []ast.Node
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.FuncDecl, *ast.FuncLit:
			all = append(all, n)
		}
		return true
	})
	return all
}

// branches counts the branches of a function, without the function literals in it.
func branches(function ast.Node) int {
	count := 0
	ast.Inspect(function, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncLit:
			return n == function
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			count++
		case *ast.CaseClause:
			if x.List != nil { // not default
				count++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				count++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				count++
			}
		}
		return true
	})
	return count
}

// TestBranches compares a count with one made by hand.
func TestBranches(t *testing.T) {
	const text = `package p
func f(a, b bool, c chan int) {
	if a && b || !a {
	}
	for range 3 {
	}
	switch {
	case a, b:
	default:
	}
	select {
	case <-c:
	default:
	}
	_ = func() {
		for {
			if a {
			}
		}
	}
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	var counts []int
	for _, f := range functions(file.Decls[0]) {
		counts = append(counts, branches(f))
	}
	if want := []int{6, 2}; !slices.Equal(counts, want) {
		t.Errorf("branches %v, want %v", counts, want)
	}
}
