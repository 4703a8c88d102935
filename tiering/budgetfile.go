package tiering

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tierd/tiering/schedule"
)

func budgetPath(metadata string) string { return metadata + ".budget" }

// keepBudget writes down what is taken from the movement budget. It is called before any
// of it is used, with a little more than is taken, and exactly once a cycle and at stop;
// so a kill or a power cut never makes a day or a cycle begin anew.
func (m *monitor) keepBudget(s schedule.State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode budget: %w", err)
	}
	path := budgetPath(m.pool.opts.Metadata)
	if err := replaceFile(path, data); err != nil {
		return fmt.Errorf("save budget: %w", err)
	}
	return nil
}

// replaceFile writes a file so that after a crash it has either its old content or the new
// one, durably once it returns.
func replaceFile(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	err = dir.Sync()
	if cerr := dir.Close(); err == nil {
		err = cerr
	}
	return err
}

// loadBudget takes over what was taken before a restart, today and in a cycle that has
// not ended: that goes on.
func (m *monitor) loadBudget() {
	data, err := os.ReadFile(budgetPath(m.pool.opts.Metadata))
	var s schedule.State
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.pool.log.Warn("the movement budget cannot be read; it begins anew", "error", err)
	}
	budget := m.pool.reloc.budget
	budget.KeepBy(m.keepBudget)
	now := m.pool.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	began := budget.Restore(s, m.opts.Cycle)
	if began.IsZero() {
		budget.NewCycle(now)
		began = now
	}
	m.nextCycle = began.Add(m.opts.Cycle)
}
