package stats

import (
	"math"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// TestExpiring: messages are counted in the first of the times within which they expire, and in all
// longer ones, whatever another node asks about.
func TestExpiring(t *testing.T) {
	const now = 1_000_000
	m := queue.New("q", 1)
	for i, ttl := range []uint64{1000, 1001, 5000, 0, 315_360_000_000} {
		c := &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, TtlPlusOne: ttl + 1}}
		if ttl == 0 {
			c.Enqueue.TtlPlusOne = 0
		}
		m.Apply(fsm.Meta{Index: uint64(i + 1), Now: now}, c, &fsm.Effects{})
	}
	counts := expiring(m, now, expiringWithin)
	list := expiringFrom(expiringWithin, counts)
	want := []api.ExpiringWithin{{WithinMS: 1000, Messages: 1}, {WithinMS: 2000, Messages: 2}, {WithinMS: 5000, Messages: 3}}
	if len(list) != len(expiringWithin) || !slices.Equal(list[:3], want) || list[len(list)-2].Messages != 3 || list[len(list)-1].Messages != 4 {
		t.Errorf("%+v", list)
	}
	if counts := expiring(m, now, []uint64{0, 1000, math.MaxUint64}); !slices.Equal(counts, []uint64{0, 1, 4}) {
		t.Errorf("of any times: %d", counts)
	}
	if list := expiringFrom([]uint64{1, 2, 3}, []uint64{0, 7, 7}); !slices.Equal(list, []api.ExpiringWithin{{WithinMS: 1}, {WithinMS: 2, Messages: 7}}) {
		t.Errorf("the last one is soon: %+v", list)
	}
	for _, counts := range [][]uint64{nil, {0, 0, 0}, {1, 2}, {1, 2, 3, 4}} {
		if list := expiringFrom([]uint64{1, 2, 3}, counts); list != nil {
			t.Errorf("%d: %+v", counts, list)
		}
	}
	if !slices.IsSorted(expiringWithin) {
		t.Errorf("%d", expiringWithin)
	}
}
