package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tierd/pkg/units"
)

// Limits of names, in bytes.
const (
	MaxVolumeName = 255
	MaxTierName   = 64
)

// CheckVolumeName returns nil if name can name a volume: 1 to 255 bytes of
// UTF-8 without a slash and without control characters. The text of the error
// reads on after "name: ".
func CheckVolumeName(name string) error {
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > MaxVolumeName:
		return fmt.Errorf("must be at most %d bytes long (got %d)", MaxVolumeName, len(name))
	case !utf8.ValidString(name):
		return fmt.Errorf("must be valid UTF-8 (got %s)", units.Quote(name))
	case strings.Contains(name, "/"):
		return fmt.Errorf("must not contain a slash (got %s)", units.Quote(name))
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("must not contain control characters (got %s)", units.Quote(name))
	}
	return nil
}

// CheckTierName returns nil if name can name a tier: 1 to 64 letters, digits,
// dots, underscores and dashes, and not the word for a policy. The text of the
// error reads on after "name: ".
func CheckTierName(name string) error {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > MaxTierName:
		return fmt.Errorf("must be at most %d bytes long (got %d)", MaxTierName, len(name))
	case strings.Trim(name, letters) != "":
		return fmt.Errorf("must be made of letters, digits, '.', '_' and '-' (got %s)", units.Quote(name))
	case slices.Contains([]string{PolicyAuto, PolicyHighest, PolicyLowest}, name):
		return fmt.Errorf("must not be %q, which is a policy", name)
	}
	return nil
}

// CheckPolicy returns nil if policy is auto, highest, lowest or the name of one
// of the tiers. The text of the error reads on after "policy: ".
func CheckPolicy(policy string, tiers []string) error {
	known := append([]string{PolicyAuto, PolicyHighest, PolicyLowest}, tiers...)
	if slices.Contains(known, policy) {
		return nil
	}
	return fmt.Errorf("must be auto, highest, lowest or a tier's name (got %s)", units.Quote(policy))
}

// CheckClientName returns nil if name can be that of a client, as its certificate has
// it: 1 to 255 bytes of UTF-8 without control characters. The error says what it must
// be.
func CheckClientName(name string) error {
	if name == "" || len(name) > 255 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("must have 1 to 255 bytes of text without control characters (got %s)", units.Quote(name))
	}
	return nil
}
