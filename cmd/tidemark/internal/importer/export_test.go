package importer

// SetSortBytes sets how much is sorted in memory at once, and gives what it was.
func SetSortBytes(n int) (old int) {
	old, sortBytes = sortBytes, n
	return old
}
