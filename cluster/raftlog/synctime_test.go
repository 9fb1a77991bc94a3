package raftlog

import (
	"testing"
	"time"
)

// TestSyncTime: the mean follows the last writes.
func TestSyncTime(t *testing.T) {
	var of syncTime
	mean := func() time.Duration { return time.Duration(of.ns.Load()) }
	of.observe(time.Now().Add(time.Hour)) // a write that took no time counts, too
	if mean() != 1 {
		t.Errorf("after a first one: %v", mean())
	}
	of.observe(time.Now().Add(-16 * time.Hour))
	if mean() < time.Hour || mean() > 2*time.Hour {
		t.Errorf("after a long one: %v", mean())
	}
	for range 200 {
		of.observe(time.Now().Add(-time.Minute))
	}
	if mean() < time.Minute || mean() > 2*time.Minute {
		t.Errorf("after many short ones: %v", mean())
	}
	all := of.all.Read()
	n := uint64(0)
	for _, c := range all.Of {
		n += c
	}
	if n != 202 || all.Of[0] != 1 || all.Sum < 16*time.Hour+200*time.Minute {
		t.Errorf("all of them: %+v", all)
	}
}
