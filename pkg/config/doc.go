// Package config reads tierd's one configuration file: strict YAML, checked as
// a whole, every fault reported at once with its line and path.
//
// # Model
//
// Config is the file as Go values, and its yaml tags are the file's schema.
// Default returns what an empty file would mean; Decode lays the file over it;
// Validate checks the result. Load is the three of them for a path.
//
//	cfg, err := config.Load("/etc/tierd/tierd.yaml")
//	var bad *config.Error
//	if errors.As(err, &bad) {
//	        // bad.Faults: [{12 tiers[1].backings[0].size must be above 0 (got 0)}]
//	}
//
// The decoder walks the syntax tree itself rather than let the YAML library
// fill the structs: the library stops at the first bad value, and an
// administrator who restarts a daemon should see all that is wrong in one go.
// So a wrong type, an unknown key and a tier named twice are found in the same
// run. A value that could not be decoded is not validated as well, so that
// each mistake yields one line.
//
// Anchors, aliases, merge keys, tags and further documents are refused. They
// are of no use in a file this short, and each is a way for a line to mean
// something it does not show.
//
// # What the file is for
//
// Tiers, backings and volumes seed `tierctl pool create`. Afterwards the pool's
// own metadata is what counts, and the file gives path hints and tunables;
// differences are reported by whoever opens the pool. Reloadable says which
// settings a running daemon can take over from a changed file.
//
// A setting that this version accepts and does not act upon is named by
// Warnings; one whose absence would be dangerous, such as TLS, is refused.
//
// The package knows no tiering types: cmd/tierd translates. Volume and tier
// names are checked here and wherever names enter by other ways, with
// CheckVolumeName and CheckTierName.
package config
