package raftlog

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// However entries come, die and go, the sums over them are right.
func TestSumsOverEntries(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var total atomic.Int64
		e := entries{total: &total, trailing: 3}
		for range 300 {
			switch next := e.last() + 1; r.IntN(7) {
			case 0, 1, 2:
				infos := make([]info, 1+r.IntN(4))
				for i := range infos {
					infos[i] = info{header: 30, payload: uint32(r.IntN(3)) * 100}
				}
				e.append(next, infos, 1)
			case 3:
				if !e.empty() {
					e.die(e.first + r.Uint64N(next-e.first))
				}
			case 4:
				if !e.empty() {
					e.truncatePrefix(e.first + r.Uint64N(next-e.first))
				}
			case 5:
				if !e.empty() {
					e.truncateSuffix(e.first+r.Uint64N(next-e.first), 1)
				}
			case 6:
				e.retention.from, e.trailing = r.Uint64N(next), r.Uint64N(5)
				e.recount()
			}
			if err := e.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if total.Load() != e.reclaimable {
				t.Fatalf("seed %d: %d bytes are reclaimable, of all groups %d", seed, e.reclaimable, total.Load())
			}
		}
		if e.forget(); total.Load() != 0 || e.check() != nil {
			t.Errorf("seed %d: %d bytes are reclaimable of no entries: %v", seed, total.Load(), e.check())
		}
	}
}

func TestEntriesThatAreKept(t *testing.T) {
	var total atomic.Int64
	e := entries{total: &total, trailing: 2}
	e.append(11, []info{{header: 10, payload: 5}, {header: 10}, {header: 10}, {header: 10}}, 1)
	if e.reclaimable != 20 { // 11 and 12
		t.Errorf("%d bytes are reclaimable behind two trailing entries", e.reclaimable)
	}
	if e.die(11); e.reclaimable != 25 || e.live != 0 {
		t.Errorf("%d bytes are reclaimable, %d live", e.reclaimable, e.live)
	}
	e.retention.from = 12
	if e.recount(); e.reclaimable != 15 {
		t.Errorf("%d bytes are reclaimable of what is not retained", e.reclaimable)
	}
	if n := e.freed(12, 1000); n != 30 {
		t.Errorf("%d bytes are retained", n)
	}
	if n := e.freed(11, 14); n != 15 {
		t.Errorf("it counts to %d where the limit is 14", n)
	}
}

func TestOffersPostponeReleases(t *testing.T) {
	var o offers
	if o.postpone([]uint64{1}) {
		t.Error("postponed without an offer")
	}
	o.open = 2
	if !o.postpone([]uint64{2, 3}) || len(o.end()) != 0 || !o.postpone([]uint64{4}) {
		t.Error("released while an offer is open")
	}
	if late := o.end(); len(late) != 3 || o.postponed != nil {
		t.Errorf("%v is released at the end", late)
	}
}
