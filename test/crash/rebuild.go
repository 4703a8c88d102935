package crash

// rebuild makes the metadata of a machine anew from its backings.
var rebuild func(m *machine) error
