package stats

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Queue describes a queue's state, as reported by its leader, in the terms of the API.
type Queue struct {
	Leader   string // node that leads
	Revision uint64 // of the effective settings that the queue has applied
	api.QueueStats
	Delay    api.DelayStats       // if it is the store of a delayed exchange
	Expiring []api.ExpiringWithin // if it is the only queue that was asked about, or all were, and some of its messages will
}

// statsOf reads a machine. peerpb.QueueStats is the only type that carries its numbers: a new one
// gets a field there, a line here, and a field with the same JSON name in api.QueueStats.
// now is the time of day as queues are stamped.
func statsOf(m *queue.Machine, now fsm.Time) *peerpb.QueueStats {
	s := wireOf(m.Stats())
	late, _ := m.Lateness()
	active, inUse := m.Activity()
	s.Queue, s.Revision, s.ConsumersTimedOut = uint64(m.ID()), m.Config().GetRevision(), uint64(late)
	s.LastActive, s.InUse = int64(active), inUse
	o := m.Outlook()
	s.NextExpiryAt, s.LeaseExpiresAt = int64(o.NextExpiry), int64(o.LeaseEnd)
	s.MessagesReadyReturned, s.SingleActiveConsumerTag = o.Returned, o.SingleActive
	capacity := queue.CapacityOf(m).Share(now)
	s.ReadyByPriority, s.ConsumerCapacity = queue.ReadyByPriority(m), &capacity
	return s
}

func wireOf(s queue.Stats) *peerpb.QueueStats {
	c := &s.Counters
	var died []uint64
	for _, by := range c.Deaths {
		died = append(died, by[:]...)
	}
	return &peerpb.QueueStats{
		Gone:          s.Phase != queue.Active,
		MessagesReady: s.Ready.Messages, MessageBytesReady: s.Ready.Bytes,
		MessagesUnacknowledged: s.Unacknowledged.Messages, MessageBytesUnacknowledged: s.Unacknowledged.Bytes,
		MessagesScheduled: s.Scheduled.Messages, MessageBytesScheduled: s.Scheduled.Bytes,
		MessagesDelayedRetry: s.Delayed.Messages, MessageBytesDelayedRetry: s.Delayed.Bytes,
		MessagesDeferred: s.Deferred.Messages, MessageBytesDeferred: s.Deferred.Bytes, MessagesDeferredTotal: c.Deferred,
		MessagesKickedTotal: c.Kicked,
		MessagesParked:      s.Parked.Messages, MessageBytesParked: s.Parked.Bytes, MessagesParkedTotal: c.Parked, MessagesUnparkedTotal: c.Unparked,
		MessagesLocked: uint64(s.Locked), LocksLostTotal: c.LocksLost, LocksRenewedTotal: c.LocksRenewed, LateSettlementsTotal: c.LateLocks,
		MessagesForwarding: s.Forwarding.Messages, MessagesForwardedTotal: c.Forwarded,
		MessagesDlx: s.Outbox.Messages, MessageBytesDlx: s.Outbox.Bytes, MessagesDlxWaiting: s.Waiting.Messages,
		Consumers:            uint64(s.Consumers),
		MessagesExpiredTotal: c.Expired, MessagesTimedOutTotal: c.TimedOut, ConsumerTimeoutLateAcksTotal: c.LateAcks,
		MessagesDeadLetteredTotal: c.DeadLettered, DeadLettersDroppedTotal: c.DeadDropped,
		MessagesDeadLetteredConfirmedTotal: c.DeadConfirmed, DeadLettersRefusedTotal: c.DeadRefused, DiedTotal: died,
		Groups: uint64(s.Groups.Groups), GroupsHeld: uint64(s.Groups.Held), GroupStateBytes: s.Groups.StateBytes,
		GroupsTakenTotal: c.GroupsTaken, GroupsLostTotal: c.GroupsLost,
		MessagesPurgedTotal: c.Purged, MessagesCancelledTotal: c.Cancelled, MessagesReplacedTotal: c.Replaced,
		ScheduledTotal: c.Scheduled, UnscheduledTotal: c.Unscheduled, UnroutableTotal: c.Unroutable,
		MessagesDeduplicatedTotal: c.SameID, DedupIds: uint64(s.IDs), DedupIdsForgottenEarlyTotal: c.IDsForgotten,
	}
}

// from makes q what the leader of a queue answers: numbers with the same JSON name in both types are
// copied, others derived. Callers with many answers use one q: it is too large to allocate for each.
func (q *Queue) from(leader string, s *peerpb.QueueStats) {
	*q = Queue{Leader: leader, Revision: s.Revision, Delay: api.DelayStats{
		Delayed: s.MessagesScheduled, DelayedBytes: s.MessageBytesScheduled, NextDelayedAt: s.NextDelayedAt, LastDelayedAt: s.LastDelayedAt,
		FiredTotal:     s.ScheduledTotal - s.UnscheduledTotal - s.MessagesScheduled,
		CancelledTotal: s.UnscheduledTotal, UnroutableTotal: s.UnroutableTotal,
	}}
	r := &q.QueueStats
	from, to := reflect.ValueOf(s).Elem(), reflect.ValueOf(r).Elem()
	for _, f := range sameName {
		to.Field(f.to).Set(from.Field(f.from))
	}
	r.Messages = s.MessagesReady + s.MessagesUnacknowledged + s.MessagesScheduled + s.MessagesDelayedRetry + s.MessagesDeferred + s.MessagesParked + s.MessagesDlx
	r.Bytes = s.MessageBytesReady + s.MessageBytesUnacknowledged + s.MessageBytesScheduled + s.MessageBytesDelayedRetry + s.MessageBytesDeferred + s.MessageBytesParked + s.MessageBytesDlx
	r.Delayed, r.DelayedBytes = s.MessagesScheduled+s.MessagesDelayedRetry, s.MessageBytesScheduled+s.MessageBytesDelayedRetry
	r.DiedUnroutableTotal = s.UnroutableTotal
	if r.ConsumerUtilisation = r.ConsumerCapacity; r.ConsumerCapacity != nil {
		describePriorities(r, s.ReadyByPriority)
	}
	describeLog(r, s)
	r.NextExpiryAt, r.LeaseExpiresAt = instant(s.NextExpiryAt), instant(s.LeaseExpiresAt)
	if !s.InUse && s.LastActive > 0 {
		r.IdleSince = time.UnixMilli(s.LastActive).UTC().Format(rfc3339Millis)
	}
	r.Deaths = noDeaths
	totals := [...]*uint64{&r.DiedExpiredTotal, &r.DiedRejectedTotal, &r.DiedMaxlenTotal, &r.DiedDeliveryLimitTotal, &r.DiedUnroutableTotal, &r.DiedGroupExpiredTotal, &r.DiedMaxhopsTotal}
	dispositions := int(queue.AtLeastOnce) + 1
	for i, n := range s.DiedTotal[:min(len(s.DiedTotal), len(totals)*dispositions)] {
		if n == 0 {
			continue
		}
		*totals[i/dispositions] += n
		reason := strings.ToLower(logpb.Death_Reason(i/dispositions + 1).String())
		if len(r.Deaths) == 0 {
			r.Deaths = map[string]map[string]uint64{}
		}
		if r.Deaths[reason] == nil {
			r.Deaths[reason] = map[string]uint64{}
		}
		r.Deaths[reason][queue.Disposition(i%dispositions).String()] = n
	}
}

// describePriorities says how many ready messages there are of each priority that has any.
func describePriorities(r *api.QueueStats, counts []uint64) {
	active := uint64(0)
	r.ByPriority, r.ActivePriorities = noPriorities, &active
	for priority, n := range counts {
		if n == 0 {
			continue
		}
		if active++; active == 1 {
			r.ByPriority = map[string]uint64{}
		}
		r.ByPriority[strconv.Itoa(priority)] = n
	}
}

// noPriorities is what empty queues have. It must not be changed.
var noPriorities = map[string]uint64{}

// describeLog says where a queue's messages are.
func describeLog(r *api.QueueStats, s *peerpb.QueueStats) {
	r.Memory, r.MemoryBytes = r.Messages, r.Bytes
	if x := s.Replica; x != nil {
		r.Persistent, r.PersistentBytes, r.Memory, r.MemoryBytes = r.Messages, r.Bytes, 0, 0
		r.Raft = &api.Raft{
			Term: x.Term, CommitIndex: x.Commit, AppliedIndex: x.Applied, LastIndex: x.Last, SnapshotIndex: x.Snapshot, LogBytes: s.LogBytes,
		}
	}
}

// rfc3339Millis is how RabbitMQ writes when a queue was last active.
const rfc3339Millis = "2006-01-02T15:04:05.000-07:00"

// instant is a time in milliseconds as the API shows it; nil: there is none.
func instant(ms int64) *int64 {
	if ms == 0 {
		return nil
	}
	at := ms // ms itself would be on the heap even if there is none
	return &at
}

// noDeaths is what most queues have. It must not be changed.
var noDeaths = map[string]map[string]uint64{}

// sameName holds the indexes of the fields of peerpb.QueueStats and of api.QueueStats that have the
// same JSON name and type.
var sameName = func() (pairs []struct{ from, to int }) {
	byName := map[string]int{}
	for i, wire := 0, reflect.TypeFor[peerpb.QueueStats](); i < wire.NumField(); i++ {
		if name := jsonName(wire.Field(i)); name != "" {
			byName[name] = i
		}
	}
	for i, shown := 0, reflect.TypeFor[api.QueueStats](); i < shown.NumField(); i++ {
		if from, ok := byName[jsonName(shown.Field(i))]; ok && reflect.TypeFor[peerpb.QueueStats]().Field(from).Type == shown.Field(i).Type {
			pairs = append(pairs, struct{ from, to int }{from, i})
		}
	}
	return pairs
}()

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
