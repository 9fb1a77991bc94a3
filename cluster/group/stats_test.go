package group

import (
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// TestStatsAreSmall: a node can hold the numbers of a hundred thousand queues that have been used and do nothing.
func TestStatsAreSmall(t *testing.T) {
	if size := unsafe.Sizeof(Stats{}); size > 200 {
		t.Errorf("%d bytes", size)
	}
	if s := StatsOf(queue.New("q", 7)); s.Listed || s.Use != nil || s.LastNumber != 0 {
		t.Errorf("nobody has used it: %+v", s)
	}
	x := used{t: t, m: queue.New("q", 7)}
	x.do(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9}})
	x.do(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 8}})
	x.do(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: true}})
	s := StatsOf(x.m)
	if s.Priorities != nil || s.Use != nil || s.Rest != nil || !s.Listed {
		t.Errorf("%+v", s)
	}
	if s.Applied != 3 || s.Clock != 1003 || s.LastActive != 1003 || s.LastNumber != 2 || s.InUse || s.Ready != (queue.Count{Messages: 1, Bytes: 8}) || s.Phase != queue.Active {
		t.Errorf("%+v", s)
	}
	if got := s.ReadyByPriority(); !slices.Equal(got, []uint64{0, 0, 0, 0, 1}) || s.Capacity(2000) != 0 {
		t.Errorf("by priority %d, capacity %v", got, s.Capacity(2000))
	}
}

// TestStatsInUse: what consumers do, what comes next, and priorities.
func TestStatsInUse(t *testing.T) {
	x := used{t: t, m: queue.New("q", 7)}
	x.do(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}})
	for priority := range uint32(3) {
		x.do(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 10, PriorityPlusOne: 1 + priority, TtlPlusOne: 501}})
	}
	for _, due := range []int64{5000, 6000} {
		x.do(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, DueAt: due}})
	}
	s := StatsOf(x.m)
	if s.Ready.Messages != 2 || s.Unacknowledged.Messages != 1 || s.Consumers != 1 || !s.InUse || s.Oldest() != (queue.Oldest{Ready: 1003, Unacked: 1002, Scheduled: 1005}) || s.Capacity(1002) == 0 {
		t.Errorf("%+v, use %+v", s, s.Use)
	}
	if s.NextExpiry != 1503 || s.NextDeadline != 1503 || s.NextScheduled != 5000 || s.LastScheduled != 6000 {
		t.Errorf("%+v", s)
	}
	if got := s.ReadyByPriority(); !slices.Equal(got, []uint64{0, 1, 1}) {
		t.Errorf("by priority %d", got)
	}
	if all := s.All(); all != x.m.Stats() || all.Scheduled.Messages != 2 {
		t.Errorf("%+v", all)
	}
}

// used is a machine that gets commands of one session.
type used struct {
	t  *testing.T
	m  *queue.Machine
	at fsm.Meta
}

// do applies a command, a millisecond after the one before; the first is stamped 1001.
func (x *used) do(c *logpb.Command) {
	x.t.Helper()
	x.at.Index++
	x.at.Term, x.at.Now, x.at.Session = 1, fsm.Time(1000+x.at.Index), fsm.SessionID{Node: 1, Boot: 1, Num: 1}
	c.Seq = x.at.Index
	if r := x.m.Apply(x.at, c, &fsm.Effects{}); r.Code != fsm.OK {
		x.t.Fatalf("%v: %v", c.Kind, r.Code)
	}
}

// TestStatsKeepAll: no number of a machine is lost, whichever of them a queue has, but for those that no list shows.
func TestStatsKeepAll(t *testing.T) {
	unshown := map[string]bool{"Sessions": true}
	for _, name := range []string{"Enqueued", "Delivered", "Redelivered", "Acked", "Requeued", "Duplicates"} {
		unshown["Counters."+name] = true
	}
	var all queue.Stats
	var walk func(name string, v reflect.Value)
	walk = func(name string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				next := v.Type().Field(i).Name
				if name != "" {
					next = name + "." + next
				}
				walk(next, v.Field(i))
			}
			return
		case reflect.Array:
			for i := range v.Len() {
				walk(name, v.Index(i))
			}
			return
		case reflect.Uint8, reflect.Uint64:
			v.SetUint(1)
		default:
			v.SetInt(1)
		}
		shown := Stats{Phase: all.Phase, Clock: all.Clock, Ready: all.Ready, Unacknowledged: all.Unacknowledged, Consumers: all.Consumers}
		if hasRest(all) {
			shown.Rest = &all
		}
		if got := shown.All(); (got == all) == unshown[name] {
			t.Errorf("of %s: %+v", name, got)
		}
		v.SetZero()
	}
	walk("", reflect.ValueOf(&all).Elem())
}

// BenchmarkStats reads an idle queue: a scan of a hundred thousand allocates nothing for them but what ReadyByPriority
// makes of those with messages.
func BenchmarkStats(b *testing.B) {
	m := queue.New("q", 7)
	b.ReportAllocs()
	for b.Loop() {
		if s := StatsOf(m); s.Rest != nil {
			b.Fatal(s)
		}
	}
}
