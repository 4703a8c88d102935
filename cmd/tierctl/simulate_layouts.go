package main

import (
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml"

	"tierd/tiering/simulate"
)

// maxLayoutsBytes bounds a file of layouts.
const maxLayoutsBytes = 1 << 20

// layoutsFile is a file of layouts; the words are those of simulate.ParseLayout.
type layoutsFile struct {
	Layouts []struct {
		Name  string `yaml:"name"`
		Tiers []struct {
			Name      string `yaml:"name"`
			Time      string `yaml:"time"`
			Size      string `yaml:"size"`
			Devices   string `yaml:"devices"`
			RAID      string `yaml:"raid"`
			Write     string `yaml:"write"`
			Bandwidth string `yaml:"bandwidth"`
		} `yaml:"tiers"`
	} `yaml:"layouts"`
}

func readLayouts(path string) ([]simulate.Layout, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLayoutsBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxLayoutsBytes {
		return nil, fmt.Errorf("%s is above %d bytes", path, maxLayoutsBytes)
	}
	var file layoutsFile
	if err := yaml.UnmarshalWithOptions(data, &file, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Layouts) == 0 {
		return nil, fmt.Errorf("%s has no layouts", path)
	}
	var out []simulate.Layout
	for i, l := range file.Layouts {
		layout := simulate.Layout{Name: l.Name}
		for _, t := range l.Tiers {
			var options []string
			for _, o := range [][2]string{{"devices", t.Devices}, {"raid", t.RAID}, {"write", t.Write}, {"bandwidth", t.Bandwidth}} {
				if o[1] != "" {
					options = append(options, o[0]+"="+o[1])
				}
			}
			tier, err := simulate.NewTier(t.Name, t.Time, t.Size, options...)
			if err != nil {
				return nil, fmt.Errorf("%s: layout %d: %w", path, i+1, err)
			}
			layout.Tiers = append(layout.Tiers, tier)
		}
		if err := layout.Validate(); err != nil {
			return nil, fmt.Errorf("%s: layout %d: %w", path, i+1, err)
		}
		out = append(out, layout)
	}
	return out, nil
}
