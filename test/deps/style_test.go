package deps

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits of the house style.
const (
	maxLines    = 600 // of a file; about 400 is the aim
	minDocWords = 20  // of a package comment that a stranger can start from
)

// files returns the paths of a package's Go files, with or without tests.
func (p goPackage) files(tests bool) []string {
	names := p.GoFiles
	if tests {
		names = slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles)
	}
	var paths []string
	for _, n := range names {
		paths = append(paths, filepath.Join(p.Dir, n))
	}
	return paths
}

// parse returns a package's own files.
func parse(t *testing.T, p goPackage) (*token.FileSet, []*ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range p.files(false) {
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return fset, files
}

// TestPolicyIsToldTheTime finds packages of policy that ask for the time.
func TestPolicyIsToldTheTime(t *testing.T) {
	policy := []string{"tiering/heat", "tiering/plan", "tiering/schedule", "tiering/simulate", "tiering/alloc"}
	asks := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}
	for _, p := range packages(t) {
		if !slices.Contains(policy, p.short()) {
			continue
		}
		fset, files := parse(t, p)
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(asks, sel.Sel.Name) {
					t.Errorf("%s: time.%s: policy is told the time, so that it can be replayed", fset.Position(n.Pos()), sel.Sel.Name)
				}
				return true
			})
		}
	}
}

// TestPackagesAreDocumented wants a doc.go with a comment of some substance.
func TestPackagesAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests alone
		}
		path := filepath.Join(p.Dir, "doc.go")
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Errorf("%s has no doc.go that a stranger could start from: %v", p.ImportPath, err)
			continue
		}
		if n := len(strings.Fields(f.Doc.Text())); n < minDocWords {
			t.Errorf("%s: the package comment has %d words, want %d or more: model, invariants, lock order, formats", path, n, minDocWords)
		}
	}
}

// TestExportedIsDocumented wants a comment on every exported identifier that
// another package can see.
func TestExportedIsDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if p.Name == "main" || strings.HasPrefix(p.short(), "test/") || len(p.GoFiles) == 0 {
			continue
		}
		fset, files := parse(t, p)
		d, err := doc.NewFromFiles(fset, files, p.ImportPath, doc.Mode(0))
		if err != nil {
			t.Fatal(err)
		}
		missing := func(what, name string) { t.Errorf("%s: %s %s has no comment", p.ImportPath, what, name) }
		values := func(what string, list []*doc.Value) {
			for _, v := range list {
				checkValue(v, func(name string) { missing(what, name) })
			}
		}
		funcs := func(prefix string, list []*doc.Func) {
			for _, f := range list {
				if f.Doc == "" && !obvious(f) {
					missing("func", prefix+f.Name)
				}
			}
		}
		values("const", d.Consts)
		values("var", d.Vars)
		funcs("", d.Funcs)
		for _, typ := range d.Types {
			if typ.Doc == "" && commentOf(typ.Decl, typ.Name) == "" {
				missing("type", typ.Name)
			}
			values("const", typ.Consts)
			values("var", typ.Vars)
			funcs("", typ.Funcs)
			funcs(typ.Name+".", typ.Methods)
		}
	}
}

// obvious reports whether a method's contract is that of a well-known interface,
// which needs no retelling.
func obvious(f *doc.Func) bool {
	names := []string{"String", "Error", "Unwrap", "Is", "As", "Type", "MarshalText", "Len", "Less", "Swap"}
	return f.Recv != "" && slices.Contains(names, f.Name)
}

// checkValue calls missing for each exported name of a declaration that neither
// it, nor its group, nor its line explains.
func checkValue(v *doc.Value, missing func(string)) {
	if v.Doc != "" {
		return
	}
	for _, s := range v.Decl.Specs {
		s := s.(*ast.ValueSpec)
		for _, n := range s.Names {
			if n.IsExported() && s.Doc.Text() == "" && s.Comment.Text() == "" {
				missing(n.Name)
			}
		}
	}
}

// commentOf returns the comment at a type's line.
func commentOf(d *ast.GenDecl, name string) string {
	for _, s := range d.Specs {
		if s, ok := s.(*ast.TypeSpec); ok && s.Name.Name == name {
			return s.Doc.Text() + s.Comment.Text()
		}
	}
	return ""
}

// TestFilesAreShort finds files that have outgrown a reader, and notes of work
// left undone.
func TestFilesAreShort(t *testing.T) {
	left := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X:"}
	for _, p := range packages(t) {
		for _, path := range p.files(true) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(b, []byte("\n")); n > maxLines {
				t.Errorf("%s has %d lines, at most %d: one noun per file", path, n, maxLines)
			}
			for _, word := range left {
				if i := bytes.Index(b, []byte(word)); i >= 0 {
					t.Errorf("%s:%d: %s: do it, or file it", path, 1+bytes.Count(b[:i], []byte("\n")), word)
				}
			}
		}
	}
}
