package config

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"tierd/pkg/units"
)

// Limits of what is parsed at all: many times the largest sensible file, and
// little enough for the parser, which recurses.
const (
	maxFileBytes = 1 << 20
	maxBrackets  = 10_000
)

// Load reads, decodes and validates the file at path. The error is an *Error
// if the file could be read and is not a valid configuration.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Decode(data, path)
}

// Decode lays the YAML in data over Default and validates the result. The
// error is an *Error with every fault there is; the name of the file is for its
// heading alone.
func Decode(data []byte, filename string) (*Config, error) {
	cfg := Default()
	cfg.source = source{file: filename, lines: make(map[string]int)}
	d := decoder{lines: cfg.source.lines}

	root, fault := parse(data)
	if fault != nil {
		return nil, newError(filename, []Fault{*fault})
	}
	if root != nil {
		d.value(root, "", reflect.ValueOf(cfg).Elem())
	}
	v := validator{source: cfg.source, decoding: d.faults}
	v.config(cfg)
	if err := newError(filename, append(d.faults, v.faults...)); err != nil {
		return nil, err
	}
	return cfg, nil
}

// parse returns the root of the only document in data, nil if it is empty.
func parse(data []byte) (root ast.Node, fault *Fault) {
	if len(data) > maxFileBytes {
		return nil, &Fault{Line: 1, Text: fmt.Sprintf("must be at most %s long (got %d bytes)", units.Size(maxFileBytes), len(data))}
	}
	if strings.Count(string(data), "[")+strings.Count(string(data), "{") > maxBrackets {
		return nil, &Fault{Line: 1, Text: fmt.Sprintf("must have at most %d brackets", maxBrackets)}
	}
	// The parser is known to index past its tokens on some malformed input.
	defer func() {
		if r := recover(); r != nil {
			root, fault = nil, &Fault{Line: 1, Text: "is not YAML that can be parsed"}
		}
	}()
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		fault = &Fault{Line: 1, Text: "syntax: " + err.Error()}
		var at yaml.Error
		if errors.As(err, &at) {
			fault.Text = "syntax: " + oneLine(at.GetMessage())
			if tk := at.GetToken(); tk != nil && tk.Position != nil {
				fault.Line = max(tk.Position.Line, 1)
			}
		}
		return nil, fault
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			return nil, &Fault{Line: lineOf(doc.Body), Text: "must be one document: remove the \"---\" in the middle"}
		}
		root = doc.Body
	}
	return root, nil
}

// oneLine keeps foreign text from breaking a fault into several lines.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// A decoder fills values from a syntax tree and collects what does not fit.
type decoder struct {
	lines  map[string]int
	faults []Fault
}

func (d *decoder) faultf(n ast.Node, path, format string, args ...any) {
	d.faults = append(d.faults, Fault{Line: lineOf(n), Path: path, Text: fmt.Sprintf(format, args...)})
}

// value decodes n, found at path, into v. Null leaves v as it is.
func (d *decoder) value(n ast.Node, path string, v reflect.Value) {
	if path != "" {
		d.lines[path] = lineOf(n)
	}
	switch n.Type() {
	case ast.NullType:
		delete(d.lines, path) // as if it were not there
		return
	case ast.AnchorType, ast.AliasType, ast.TagType, ast.MergeKeyType:
		d.faultf(n, path, "must be written out: anchors, aliases and tags are not supported")
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(n, path, u)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, path, v)
	case reflect.Slice:
		d.list(n, path, v)
	case reflect.String:
		if s, ok := scalar(n); ok {
			v.SetString(s)
		} else {
			d.faultf(n, path, "must be text (got %s)", kind(n))
		}
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.faultf(n, path, "must be true or false (got %s)", got(n))
			return
		}
		v.SetBool(b.Value)
	case reflect.Int, reflect.Int64:
		s, _ := scalar(n)
		i, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			d.faultf(n, path, "must be a whole number (got %s)", got(n))
			return
		}
		v.SetInt(i)
	case reflect.Float64:
		s, _ := scalar(n)
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			d.faultf(n, path, "must be a number (got %s)", got(n))
			return
		}
		v.SetFloat(f)
	default:
		panic(fmt.Sprintf("config: no decoder for %s at %s", v.Type(), path))
	}
}

func (d *decoder) text(n ast.Node, path string, u encoding.TextUnmarshaler) {
	s, ok := scalar(n)
	if !ok {
		d.faultf(n, path, "must be a single value (got %s)", kind(n))
		return
	}
	if err := u.UnmarshalText([]byte(s)); err != nil {
		d.faultf(n, path, "%s", err)
	}
}

func (d *decoder) mapping(n ast.Node, path string, v reflect.Value) {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		d.faultf(n, path, "must be a mapping of keys to values (got %s)", kind(n))
		return
	}

	fields := make(map[string]int)
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("yaml"); tag != "" {
			fields[tag] = i
		}
	}
	seen := make(map[string]int)
	for _, kv := range values {
		if kv.Key.IsMergeKey() {
			d.faultf(kv.Key, path, "must be written out: merge keys are not supported")
			continue
		}
		name, ok := scalar(kv.Key)
		if !ok {
			d.faultf(kv.Key, path, "must have plain words as keys (got %s)", kind(kv.Key))
			continue
		}
		field, known := fields[name]
		if !known {
			d.faultf(kv.Key, at(path, printable(name)), "is not a known key%s", suggestion(name, fields))
			continue
		}
		if first, twice := seen[name]; twice {
			d.faultf(kv.Key, at(path, name), "is given twice, first in line %d", first)
			continue
		}
		seen[name] = lineOf(kv.Key)
		d.value(kv.Value, at(path, name), v.Field(field))
	}
}

func (d *decoder) list(n ast.Node, p string, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.faultf(n, p, "must be a list (got %s)", kind(n))
		return
	}
	list := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, element := range seq.Values {
		e := list.Index(i)
		if def, ok := e.Addr().Interface().(interface{ setDefaults() }); ok {
			def.setDefaults()
		}
		if element.Type() == ast.NullType {
			d.lines[path(p, i)] = lineOf(element)
			d.faultf(element, path(p, i), "must not be empty")
			continue
		}
		d.value(element, path(p, i), e)
	}
	v.Set(list)
}

// scalar returns the text of a node that is a single value, as it was written.
func scalar(n ast.Node) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return strings.TrimSpace(s.Value.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode, *ast.NullNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// got repeats a node in an error message.
func got(n ast.Node) string {
	if s, ok := scalar(n); ok {
		return units.Quote(s)
	}
	return kind(n)
}

// kind names what a node is.
func kind(n ast.Node) string {
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	case ast.SequenceType:
		return "a list"
	case ast.NullType:
		return "nothing"
	case ast.AnchorType, ast.AliasType, ast.TagType, ast.MergeKeyType, ast.MappingKeyType:
		return "an anchor, alias or tag"
	}
	return got(n)
}

// lineOf returns the line a node begins in.
func lineOf(n ast.Node) int {
	switch m := n.(type) {
	case *ast.MappingNode:
		// The token of a block mapping is the colon of its first entry.
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return lineOf(m.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return lineOf(m.Key)
	}
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		return max(tk.Position.Line, 1)
	}
	return 1
}

// printable returns a foreign key as part of a path.
func printable(key string) string {
	if q := units.Quote(key); q != `"`+key+`"` || strings.ContainsAny(key, " .[]") || key == "" {
		return q
	}
	return key
}

// suggestion returns the known key that a slip of the pen would turn into name.
func suggestion(name string, fields map[string]int) string {
	best, bestDistance := "", 3
	for field := range fields {
		d := distance(name, field)
		if d < bestDistance || d == bestDistance && best != "" && field < best {
			best, bestDistance = field, d
		}
	}
	if best == "" || bestDistance >= len(best) {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// distance returns how many bytes have to be put in, taken out or replaced to
// make b of a (Levenshtein), or a large number if the lengths rule it out.
func distance(a, b string) int {
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return len(a) + len(b)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
