package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
)

// live are the settings, or the beginnings of their paths, that a running
// daemon takes over from a changed file. WithLive copies the same ones.
var live = []string{"relocation", "space", "log.level"}

// Reloadable compares a changed file with the one in force. changed lists the
// settings that a running daemon takes over, ignored those that differ and
// need a restart or a tierctl command, each as "path: old -> new" in the order
// of the file.
func Reloadable(old, new *Config) (changed, ignored []string) {
	d := diff{}
	d.compare("", reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem())
	for _, change := range d.changes {
		text := fmt.Sprintf("%s: %s -> %s", change.path, change.old, change.new)
		if isLive(change.path) {
			changed = append(changed, text)
		} else {
			ignored = append(ignored, text)
		}
	}
	return changed, ignored
}

// WithLive returns old with the settings of new that can change while the
// daemon runs: the configuration in force after a reload.
func WithLive(old, new *Config) *Config {
	c := *old
	c.Relocation = new.Relocation
	c.Space = new.Space
	c.Log.Level = new.Log.Level
	return &c
}

func isLive(p string) bool {
	for _, l := range live {
		if rest, found := strings.CutPrefix(p, l); found && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

type change struct{ path, old, new string }

type diff struct{ changes []change }

// compare notes the differences between two values of one type at p.
func (d *diff) compare(p string, a, b reflect.Value) {
	_, isText := a.Interface().(encoding.TextMarshaler)
	switch {
	case isText || a.Kind() != reflect.Struct && a.Kind() != reflect.Slice:
		if a.Interface() != b.Interface() {
			d.changes = append(d.changes, change{p, printed(a), printed(b)})
		}
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			if tag := a.Type().Field(i).Tag.Get("yaml"); tag != "" {
				d.compare(at(p, tag), a.Field(i), b.Field(i))
			}
		}
	default:
		for i := range max(a.Len(), b.Len()) {
			switch {
			case i >= b.Len():
				d.changes = append(d.changes, change{path(p, i), "there", "gone"})
			case i >= a.Len():
				d.changes = append(d.changes, change{path(p, i), "none", "new"})
			default:
				d.compare(path(p, i), a.Index(i), b.Index(i))
			}
		}
	}
}

// printed returns a value as the file would have it.
func printed(v reflect.Value) string {
	if s := fmt.Sprint(v.Interface()); s != "" {
		return s
	}
	return `""`
}
