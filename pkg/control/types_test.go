package control

import (
	"encoding/json"
	"reflect"
	"regexp"
	"testing"
	"time"
)

// Every field that travels has a snake_case name of its own: none is left to
// the spelling of the Go code.
func TestEveryFieldHasAWireName(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z]+[a-z0-9]*(_[a-z0-9]+)*(,omitempty|,omitzero)?$`)
	seen := map[reflect.Type]bool{reflect.TypeFor[time.Time](): true}
	fields := 0
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Slice, reflect.Pointer, reflect.Map:
			visit(typ.Elem())
		case reflect.Struct:
			if seen[typ] {
				return
			}
			seen[typ] = true
			for i := range typ.NumField() {
				f := typ.Field(i)
				fields++
				if tag := f.Tag.Get("json"); !snake.MatchString(tag) {
					t.Errorf("%s.%s has the JSON name %q", typ.Name(), f.Name, tag)
				}
				visit(f.Type)
			}
		}
	}
	service := reflect.TypeFor[Service]()
	for i := range service.NumMethod() {
		method := service.Method(i).Type
		for j := 1; j < method.NumIn(); j++ {
			visit(method.In(j))
		}
		visit(method.Out(0))
	}
	if fields < 100 {
		t.Errorf("saw %d fields: the walk misses some", fields)
	}
}

// What a request decodes to encodes to something that decodes to the same.
func FuzzDecodeRequest(f *testing.F) {
	for i, body := range []string{``, `{}`, `{"name":"a","size_bytes":512,"policy":"auto","dry_run":true}`,
		`{"name":"a","policy":null}`, `{"volume":"a","offset":-1}`, `{"limit":1e2}`, `{"wait":true} x`, `[`} {
		f.Add(uint8(i), []byte(body))
	}
	all := routes()
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		r := all[int(n)%len(all)]
		first, second := r.decode(), r.decode()
		if decodeStrict(body, first) != nil {
			return
		}
		data, err := json.Marshal(first)
		if err != nil {
			t.Fatalf("%s: encode %+v: %v", r.name, first, err)
		}
		if err := decodeStrict(data, second); err != nil || !reflect.DeepEqual(first, second) {
			t.Fatalf("%s: %q is %+v, then %+v, %v", r.name, body, first, second, err)
		}
	})
}
