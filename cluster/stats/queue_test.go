package stats

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// queueFrom is what the answer of a queue's leader says.
func queueFrom(leader string, s *peerpb.QueueStats) (q Queue) {
	q.from(leader, s)
	return q
}

// value is a number of the n-th field that no other one has.
func value(n uint64) uint64 { return 1<<32 + n }

// fill gives each number within v a value of its own, the elements of an array the
// same one, and returns them by the names of their fields.
func fill(v reflect.Value) map[string]uint64 {
	next, all := uint64(1), map[string]uint64{}
	var walk func(name string, v reflect.Value)
	walk = func(name string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					walk(name+"."+f.Name, v.Field(i))
				}
			}
			return
		case reflect.Array:
			for i, same := 0, next; i < v.Len(); i++ { // all elements have one value
				next = same
				walk(name, v.Index(i))
			}
			return
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(value(next)))
		case reflect.Uint64, reflect.Uint32:
			v.SetUint(value(next))
		default:
			return
		}
		all[name] |= value(next)
		next++
	}
	walk("", v)
	return all
}

// numbersOf are the numbers within a message, by the names of its fields.
func numbersOf(v reflect.Value) map[string]uint64 {
	all := map[string]uint64{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		switch x := v.Field(i); x.Kind() {
		case reflect.Uint64:
			all[f.Name] = x.Uint()
		case reflect.Int64:
			all[f.Name] = uint64(x.Int())
		case reflect.Slice:
			for j := range x.Len() {
				if e := x.Index(j); e.CanUint() {
					all[f.Name] |= e.Uint()
				}
			}
		}
	}
	return all
}

// TestMachineToLinks: every number of a machine is on links, or in this list of
// those that nobody asks for; every number on links has a source.
func TestMachineToLinks(t *testing.T) {
	unused := []string{
		".Phase", ".Clock", ".Sessions", ".Pending.Messages", ".Pending.Bytes",
		".Counters.Enqueued", ".Counters.Delivered", ".Counters.Redelivered", ".Counters.Acked", ".Counters.Requeued",
		".Counters.Duplicates", ".Counters.Refused", ".Counters.AckedExpired", ".Waiting.Bytes", ".Forwarding.Bytes",
	}
	elsewhere := []string{"Queue", "Revision", "ConsumersTimedOut", "NextDelayedAt", "LastDelayedAt", "LastActive", "LastMessageNumber", "NextExpiryAt", "LeaseExpiresAt", "MessagesReadyReturned", "LogBytes", "ReadyByPriority", "Paused", "Pause", "Redrive", "MessagesDue"} // see statsOf and answer
	var s queue.Stats
	machine := fill(reflect.ValueOf(&s).Elem())
	links := numbersOf(reflect.ValueOf(wireOf(s)).Elem())
	values := slices.Collect(maps.Values(links))
	for name, n := range machine {
		if slices.Contains(values, n) == slices.Contains(unused, name) {
			t.Errorf("%s: is it on links? %v", name, slices.Contains(values, n))
		}
	}
	for name, n := range links {
		if (n == 0) != slices.Contains(elsewhere, name) {
			t.Errorf("%s: from the machine comes %d", name, n)
		}
	}
}

// TestSum: every number of what a machine has adds up, or is in this list of those that do not.
func TestSum(t *testing.T) {
	var one, sum queue.Stats
	fill(reflect.ValueOf(&one).Elem())
	sum.Add(&one)
	sum.Add(&one)
	not := []string{"Phase", "Clock", "Ended", "Counters"}
	twice := func(name string, one, sum uint64) {
		if sum != 2*one {
			t.Errorf("%s: %d and %d are %d", name, one, one, sum)
		}
	}
	var walk func(name string, one, sum reflect.Value)
	walk = func(name string, one, sum reflect.Value) {
		switch {
		case slices.Contains(not, name):
			if !sum.IsZero() {
				t.Errorf("%s adds up to %v", name, sum)
			}
		case one.Kind() == reflect.Struct:
			for i := range one.NumField() {
				walk(one.Type().Field(i).Name, one.Field(i), sum.Field(i))
			}
		case one.CanInt():
			twice(name, uint64(one.Int()), uint64(sum.Int()))
		default:
			twice(name, one.Uint(), sum.Uint())
		}
	}
	walk("", reflect.ValueOf(one), reflect.ValueOf(sum))
}

// TestLinksToAPI: every number of the API is a number on links or made of some,
// and every number on links is used.
func TestLinksToAPI(t *testing.T) {
	s := &peerpb.QueueStats{DiedTotal: make([]uint64, 28)}
	links := fill(reflect.ValueOf(s).Elem())
	for i := range s.DiedTotal {
		s.DiedTotal[i] = uint64(i + 1)
	}
	half := 0.5
	s.ConsumerCapacity, s.ReadyByPriority = &half, []uint64{3, 0, 5}
	s.SingleActiveConsumerTag, s.Replica = "active", &peerpb.Replica{Term: 1, Commit: 2, Applied: 3, Last: 4, Snapshot: 5}
	s.Paused, s.Pause, s.Redrive = true, &peerpb.QueuePause{Since: 1}, &peerpb.QueueRedrive{Number: 1}
	age := uint64(7)
	s.OldestReadyAgeMs, s.OldestUnacknowledgedAgeMs, s.OldestScheduledAgeMs, s.ByHeader = &age, &age, &age, []*peerpb.QueueTally{{Value: "add"}}
	q := queueFrom("n1", s)
	for i, v := 0, reflect.ValueOf(q.QueueStats); i < v.NumField(); i++ {
		name := v.Type().Field(i).Name
		local := name == "Memory" || name == "MemoryBytes"
		if v.Field(i).IsZero() != (local || name == "SettingsApplied") { // it takes the catalog to know that
			t.Errorf("%s: %v", name, v.Field(i))
		}
	}
	for i, v := 0, reflect.ValueOf(q.Delay); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s of a delayed exchange: 0", v.Type().Field(i).Name)
		}
	}
	shown := numbersOf(reflect.ValueOf(q.QueueStats))
	maps.Copy(shown, numbersOf(reflect.ValueOf(q.Delay)))
	var union uint64 // of the numbers, each of which is a bit of its own; differences have others
	for name, n := range shown {
		if name != "FiredTotal" {
			union |= n
		}
	}
	for name, n := range links {
		used := union&n != 0 || slices.Contains([]string{
			".Queue", ".Revision", ".LastActive", // of which the API shows nothing, or not here
			".ScheduledTotal",                                               // in FiredTotal
			".NextExpiryAt", ".LeaseExpiresAt", ".LogBytes", ".MessagesDue", // see below
		}, name)
		if !used {
			t.Errorf("%s is on links, and not shown", name)
		}
	}
	if *q.NextExpiryAt != s.NextExpiryAt || *q.LeaseExpiresAt != s.LeaseExpiresAt || !reflect.DeepEqual(*q.Raft, api.Raft{Term: 1, CommitIndex: 2, AppliedIndex: 3, LastIndex: 4, SnapshotIndex: 5, LogBytes: s.LogBytes}) {
		t.Errorf("expiry %d, lease %d, raft %+v", *q.NextExpiryAt, *q.LeaseExpiresAt, *q.Raft)
	}
	if q.Revision != s.Revision || q.Due != s.MessagesDue || q.Delay.FiredTotal != s.ScheduledTotal-s.UnscheduledTotal-s.MessagesScheduled {
		t.Errorf("revision %d, fired %d", q.Revision, q.Delay.FiredTotal)
	}
	if *q.ConsumerCapacity != 0.5 || *q.ConsumerUtilisation != 0.5 || !maps.Equal(q.ByPriority, map[string]uint64{"0": 3, "2": 5}) || *q.ActivePriorities != 2 {
		t.Errorf("capacity %v, by priority %v", *q.ConsumerCapacity, q.ByPriority)
	}
	if want := (map[string]uint64{"disabled": 5, "at_most_once": 6, "transactional": 7, "at_least_once": 8}); !maps.Equal(q.Deaths["rejected"], want) || q.DiedRejectedTotal != 5+6+7+8 {
		t.Errorf("rejected %v, together %d", q.Deaths["rejected"], q.DiedRejectedTotal)
	}
}

// TestSameNames: what has the same JSON name is copied, and of the same type.
func TestSameNames(t *testing.T) {
	var names []string
	for _, p := range sameName {
		from, to := reflect.TypeFor[peerpb.QueueStats]().Field(p.from), reflect.TypeFor[api.QueueStats]().Field(p.to)
		if jsonName(from) != jsonName(to) || from.Type != to.Type {
			t.Errorf("%v is copied to %v", from, to)
		}
		names = append(names, jsonName(to))
	}
	derived := []string{
		"messages", "messages_delayed", "message_bytes", "message_bytes_delayed", "deaths", "raft", "next_expiry_at", "lease_expires_at", "idle_since", "pause", "redrive", "by_header",
		"messages_by_priority", "messages_active_priorities", "consumer_utilisation", "messages_persistent", "message_bytes_persistent", "messages_ram", "message_bytes_ram", "settings_in_force",
		"messages_dead_lettered_expired_total", "messages_dead_lettered_rejected_total",
		"messages_dead_lettered_maxlen_total", "messages_dead_lettered_delivery_limit_total",
		"messages_dead_lettered_unroutable_total", "messages_dead_lettered_group_expired_total", "messages_dead_lettered_maxhops_total",
	}
	for i, v := 0, reflect.TypeFor[api.QueueStats](); i < v.NumField(); i++ {
		name := jsonName(v.Field(i))
		if slices.Contains(names, name) == slices.Contains(derived, name) {
			t.Errorf("%s: is it copied? %v", name, slices.Contains(names, name))
		}
	}
}

// TestDeathsCutShort: another node's list of deaths may be shorter or longer.
func TestDeathsCutShort(t *testing.T) {
	if q := queueFrom("n1", &peerpb.QueueStats{DiedTotal: []uint64{1}}); q.DiedExpiredTotal != 1 || len(q.Deaths) != 1 {
		t.Errorf("one number: %+v", q.Deaths)
	}
	if q := queueFrom("n1", &peerpb.QueueStats{DiedTotal: make([]uint64, 40)}); q.DiedExpiredTotal != 0 || len(q.Deaths) != 0 {
		t.Errorf("too many: %+v", q.Deaths)
	}
}

// TestStatsOf: a machine tells what it knows of priorities and of the capacity of consumers.
func TestStatsOf(t *testing.T) {
	m, at, eff := queue.New("q", 1), fsm.Meta{Index: 1, Term: 1, Now: 1000}, fsm.Effects{}
	do := func(session uint64, c *logpb.Command) {
		at.Session, at.Index, c.Seq = fsm.SessionID{Node: 1, Boot: 1, Num: session}, at.Index+1, 1
		if r := m.Apply(at, c, &eff); r.Code != fsm.OK {
			t.Fatalf("%v: %v", c.Kind, r.Code)
		}
	}
	do(1, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}})
	for session := range uint64(3) {
		at.Now = 4000
		do(2+session, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 10, PriorityPlusOne: 1 + uint32(session)}})
	}
	n := group.StatsOf(m)
	if s := statsOf(m.ID(), &group.Stats{LastNumber: 7}, 5000); s.LastMessageNumber != 7 {
		t.Errorf("the last message has the number %d", s.LastMessageNumber)
	}
	if s := statsOf(m.ID(), &n, 5000); *s.ConsumerCapacity != 0.75 || !slices.Equal(s.ReadyByPriority, []uint64{0, 1, 1}) {
		t.Errorf("capacity %v, by priority %d", *s.ConsumerCapacity, s.ReadyByPriority)
	}
}

// TestFromOlderLeader: a leader that does not know of capacity and priorities says nothing of them, and
// one that does says so of an empty queue, too.
func TestFromOlderLeader(t *testing.T) {
	shown := func(s *peerpb.QueueStats) (names []string) {
		text, _ := json.Marshal(queueFrom("n1", s).QueueStats)
		var all map[string]any
		_ = json.Unmarshal(text, &all)
		for _, name := range []string{"messages_by_priority", "messages_active_priorities", "consumer_capacity", "consumer_utilisation"} {
			if v, ok := all[name]; ok {
				names = append(names, fmt.Sprint(name, "=", v))
			}
		}
		return names
	}
	if got := shown(&peerpb.QueueStats{MessagesReady: 3}); got != nil {
		t.Errorf("older: %v", got)
	}
	none := 0.0
	if got := shown(&peerpb.QueueStats{ConsumerCapacity: &none}); !slices.Equal(got, []string{"messages_by_priority=map[]", "messages_active_priorities=0", "consumer_capacity=0", "consumer_utilisation=0"}) {
		t.Errorf("empty: %v", got)
	}
}

// TestLocal: a queue with one replica has no log, and nothing on disk; one that is in use is not idle,
// and what never comes has no instant.
func TestLocal(t *testing.T) {
	q := queueFrom("n1", &peerpb.QueueStats{MessagesReady: 3, MessageBytesReady: 9, InUse: true, LastActive: 5})
	if q.Raft != nil || q.Persistent != 0 || q.PersistentBytes != 0 || q.Memory != 3 || q.MemoryBytes != 9 {
		t.Errorf("%+v", q.QueueStats)
	}
	if q.IdleSince != "" || q.NextExpiryAt != nil || q.LeaseExpiresAt != nil {
		t.Errorf("idle since %q, expiry %v, lease %v", q.IdleSince, q.NextExpiryAt, q.LeaseExpiresAt)
	}
	if q := queueFrom("n1", &peerpb.QueueStats{LastActive: 1_700_000_000_123}); q.IdleSince != "2023-11-14T22:13:20.123+00:00" {
		t.Errorf("idle since %q", q.IdleSince)
	}
}

func BenchmarkQueueFrom(b *testing.B) {
	s := &peerpb.QueueStats{MessagesReady: 1, DiedTotal: make([]uint64, 28)}
	for b.Loop() {
		queueFrom("n1", s)
	}
}
