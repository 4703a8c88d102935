package backing

// WithoutHelp makes d, which Open returned, find that the kernel can neither
// punch, zero nor discard, nor read without waiting.
func WithoutHelp(d Device) Device {
	f := d.(*file)
	f.noPunch.Store(true)
	f.noZeroRange.Store(true)
	f.noZeroOut.Store(true)
	f.noDiscard.Store(true)
	f.tryMode.Store(tryNever)
	return d
}

// WithoutPunch makes d find that the file system cannot punch holes alone.
func WithoutPunch(d Device) Device {
	d.(*file).noPunch.Store(true)
	return d
}
