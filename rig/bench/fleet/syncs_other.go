//go:build !linux

package fleet

// processSyncs is empty, because this system does not count syncs.
type processSyncs struct{}

func syncsOf(int) processSyncs { return processSyncs{} }

func (processSyncs) read() (float64, bool) { return 0, false }

func (processSyncs) close() {}
