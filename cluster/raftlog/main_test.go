package raftlog

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain bounds the memory that the collector lets grow: disks in memory are large and soon gone.
func TestMain(m *testing.M) {
	debug.SetMemoryLimit(2 << 30)
	os.Exit(m.Run())
}
