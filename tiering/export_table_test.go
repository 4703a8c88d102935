package tiering

// QueuedEntries returns how many entries wait to be written to the slot table of
// the backing at path.
func QueuedEntries(p *Pool, path string) (n int) {
	p.eachMember(func(b *member) {
		if b.path == path {
			b.tableMu.Lock()
			n = len(b.tableQueue)
			b.tableMu.Unlock()
		}
	})
	return n
}
