package tiering

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"tierd/tiering/schedule"
)

func budgetPath(metadata string) string { return metadata + ".budget" }

// saveBudget writes what was taken from the day's budget, so that a restart does
// not begin the day anew. It is written once a cycle and at stop; a kill forgets
// what was taken since.
func (m *monitor) saveBudget() error {
	data, err := json.Marshal(m.pool.reloc.budget.State())
	if err != nil {
		return fmt.Errorf("encode budget: %w", err)
	}
	path := budgetPath(m.pool.opts.Metadata)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("save budget: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("save budget: %w", err)
	}
	return nil
}

// loadBudget takes over what was taken today before a restart.
func (m *monitor) loadBudget() {
	data, err := os.ReadFile(budgetPath(m.pool.opts.Metadata))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s schedule.State
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		m.pool.log.Warn("the day's budget cannot be read; it begins anew", "error", err)
		return
	}
	m.pool.reloc.budget.Restore(s)
}
