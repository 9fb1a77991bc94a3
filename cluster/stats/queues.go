package stats

import (
	"context"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// expireWait bounds how long a node waits for what is due in the queues that are asked about.
const expireWait = 2 * time.Second

// Queues reports the state of queues and their consumers. Only the leader of a queue answers for
// it.
type Queues struct {
	nodes *Nodes
	c     QueuesConfig
	ahead counted
}

// QueuesConfig is what Queues needs of this node.
type QueuesConfig struct {
	Kind          peer.Kind // of requests for stats
	ConsumersKind peer.Kind // of requests for consumers
	TimeoutsKind  peer.Kind // of requests for the last consumer timeouts
	TimeKind      peer.Kind // of requests for what comes next
	Groups        Groups
	Catalog       interface{ View() *catalog.View }
	Clock         func() fsm.Time // as queues are stamped, and runs while they are idle
	// Sessions lists the sessions of this node's clients that have consumers.
	Sessions func() []*peerpb.ConsumingSession
	// Timeouts lists the last consumer timeouts that this node knows of.
	Timeouts   func() *peerpb.TimeoutsReply
	DriftsKind peer.Kind // of requests for what clients have declared otherwise
	// Drifts lists what clients of this node have.
	Drifts func() *peerpb.DriftsReply
}

// NewQueues returns the queues of a cluster, and answers other nodes for the queues that this node
// leads.
func NewQueues(n *Nodes, c QueuesConfig) *Queues {
	q := &Queues{nodes: n, c: c}
	peer.HandleAsk(n.Mesh, c.Kind, q.answer)
	peer.HandleAsk(n.Mesh, c.ConsumersKind, q.answerConsumers)
	peer.HandleAsk(n.Mesh, c.TimeKind, q.answerTime)
	peer.HandleAsk(n.Mesh, c.TimeoutsKind, q.answerTimeouts)
	peer.HandleAsk(n.Mesh, c.DriftsKind, q.answerDrifts)
	return q
}

// Stats asks the leaders of queues for their stats; without ids, of all queues. Queues that have
// ended, and those without a leader that answers, are missing.
func (q *Queues) Stats(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]Queue {
	return q.stats(ctx, false, ids)
}

func (q *Queues) stats(ctx context.Context, asIs bool, ids []fsm.QueueID) map[fsm.QueueID]Queue {
	replies, n := q.askAll(ctx, asIs, ids), 0
	for _, reply := range replies {
		n += len(reply.Queues)
	}
	all := make(map[fsm.QueueID]Queue, n)
	var one Queue
	for node, reply := range replies {
		for _, s := range reply.Queues {
			if !s.Gone {
				one.from(node, s)
				one.Expiring = expiringFrom(withinFor(ids), s.Expiring)
				all[fsm.QueueID(s.Queue)] = one
			}
		}
	}
	return all
}

// StatsAsIs is Stats of many queues in turns: what is due in them is not done first.
func (q *Queues) StatsAsIs(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]Queue {
	return q.stats(ctx, true, ids)
}

// Activity returns the same as the leaders' raw answers, for callers that need to know when queues
// were last in use. It includes queues that have ended.
func (q *Queues) Activity(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]*peerpb.QueueStats {
	all := map[fsm.QueueID]*peerpb.QueueStats{}
	for _, reply := range q.askAll(ctx, false, ids) {
		for _, s := range reply.Queues {
			all[fsm.QueueID(s.Queue)] = s
		}
	}
	return all
}

// StatsDue is Stats of one queue with the messages that are due within a time from now on, in ms; false: there is no
// leader that answers, or it has ended. A leader that sleeps answers as it is, if nothing is due.
func (q *Queues) StatsDue(ctx context.Context, id fsm.QueueID, within uint64) (one Queue, ok bool) {
	req := &peerpb.QueueStatsRequest{Queues: []uint64{uint64(id)}, DueWithin: within}
	for node, reply := range Everywhere(ctx, q.nodes, "read the stats of a queue", answerWait, q.c.Kind, req, q.answer).Of {
		for _, s := range reply.Queues {
			if !s.Gone {
				one.from(node, s)
				ok = true
			}
		}
	}
	return one, ok
}

func (q *Queues) askAll(ctx context.Context, asIs bool, ids []fsm.QueueID) map[string]*peerpb.QueueStatsReply {
	req := &peerpb.QueueStatsRequest{Queues: numbers(ids), ExpiringWithin: withinFor(ids), AsIs: asIs}
	return Everywhere(ctx, q.nodes, "read the stats of queues", answerWait, q.c.Kind, req, q.answer).Of
}

func numbers(ids []fsm.QueueID) []uint64 {
	var all []uint64
	for _, id := range ids {
		all = append(all, uint64(id))
	}
	return all
}

// answer reads the stats of queues that this node leads. What is due in them is done first, as far
// as time allows.
func (q *Queues) answer(req *peerpb.QueueStatsRequest) *peerpb.QueueStatsReply {
	end := time.Now().Add(expireWait)
	if req.AsIs {
		end = time.Time{}
	}
	if of := columnsOf(req.Columns); of != nil {
		return q.answerColumns(req, of, end)
	}
	r := &peerpb.QueueStatsReply{}
	for g := range q.led(req.Queues) {
		n, ok := q.numbersOf(g, end)
		if !ok {
			continue
		}
		s := statsOf(g.Spec().Queue, &n, q.c.Clock())
		if len(req.Queues) > 0 {
			s.NextDelayedAt, s.LastDelayedAt = int64(n.NextScheduled), int64(n.LastScheduled)
		}
		if len(req.Queues) == 1 {
			s.ByHeader = talliesOf(&n, q.c.Clock())
		}
		s.Expiring, s.MessagesDue = q.expiring(g, &n, req.ExpiringWithin), q.due(g, &n, req.DueWithin)
		if !g.IsLocal() {
			s.Replica, s.LogBytes = queueReplica(g), g.LogBytes()
			s.Replica.Snapshot, s.Replica.Voters = g.SnapshotIndex(), nil
		}
		r.Queues = append(r.Queues, s)
	}
	return r
}

// soon is within how much of what is due a queue is asked to do it: it knows better whether it is.
const soon = fsm.Millis(1000)

// numbersOf reads the numbers of a queue. What is due in it is done first, until end. false: it has been quarantined
// meanwhile, and has none.
func (q *Queues) numbersOf(g Group, end time.Time) (n group.Stats, ok bool) {
	n = g.Stats()
	if n.NextDeadline != 0 && n.NextDeadline <= max(q.c.Clock(), n.Clock).Add(soon) {
		if left := time.Until(end); left > 0 {
			_ = g.Expire(left) // late stats are better than none
			n = g.Stats()
		}
	}
	return n, g.Quarantined() == nil
}

// expiring counts the messages of a queue that expire within times from now on; nil: none does.
func (q *Queues) expiring(g Group, n *group.Stats, within []uint64) []uint64 {
	now := max(q.c.Clock(), n.Clock)
	if len(within) == 0 || n.NextExpiry == 0 || n.NextExpiry > lastOf(now, within) {
		return nil
	}
	return countExpiring(g, now, within)
}

func countExpiring(g Group, now fsm.Time, within []uint64) (counts []uint64) {
	g.View(func(m *queue.Machine) { counts = expiring(m, max(now, m.Clock()), within) })
	return counts
}

// due counts the scheduled messages of a queue, and the retries, that become ready within a time from now on. A record
// that says that all are, or none, answers for a queue that sleeps.
func (q *Queues) due(g Group, n *group.Stats, within uint64) (count uint64) {
	now, all := max(q.c.Clock(), n.Clock), n.All()
	end := now.Add(fsm.Millis(min(within, catalog.MaxTTL)))
	switch retries := all.Delayed.Messages; {
	case within == 0 || all.Scheduled.Messages+retries == 0 || n.NextDeadline > end:
		return 0
	case retries == 0 && n.NextScheduled > end:
		return 0
	case retries == 0 && n.LastScheduled <= end:
		return all.Scheduled.Messages
	}
	g.View(func(m *queue.Machine) { count = queue.TimesOf(m).DueBy(end) })
	return count
}

// led yields those of the queues with these ids that this node leads; without ids, of all queues.
func (q *Queues) led(ids []uint64) iter.Seq[Group] {
	if len(ids) == 0 {
		return q.c.Groups.Led()
	}
	view := q.c.Catalog.View()
	return func(yield func(Group) bool) {
		for _, id := range ids {
			record, ok := view.QueueByID(fsm.QueueID(id))
			if !ok {
				continue
			}
			if g := q.c.Groups.Leads(record.Group); g != nil && !yield(g) {
				return
			}
		}
	}
}

// Queue describes a queue's state, as reported by its leader, in the terms of the API.
type Queue struct {
	Leader   string // node that leads
	Revision uint64 // of the effective settings that the queue has applied
	api.QueueStats
	Due      uint64               // messages that become ready within the time that was asked about
	Delay    api.DelayStats       // if it is the store of a delayed exchange
	Expiring []api.ExpiringWithin // if it is the only queue that was asked about, or all were, and some of its messages will
}

// statsOf describes a queue. peerpb.QueueStats is the only type that carries its numbers: a new one
// gets a field there, a line here, and a field with the same JSON name in api.QueueStats.
// now is the time of day as queues are stamped.
func statsOf(id fsm.QueueID, n *group.Stats, now fsm.Time) *peerpb.QueueStats {
	s := wireOf(n.All())
	s.Queue, s.Revision, s.LastActive, s.InUse, s.LastMessageNumber = uint64(id), n.Revision, int64(n.LastActive), n.InUse, n.LastNumber
	s.NextExpiryAt, s.LeaseExpiresAt, s.MessagesReadyReturned = int64(n.NextExpiry), int64(n.LeaseEnd), n.Returned
	if u := n.Use; u != nil {
		s.ConsumersTimedOut, s.SingleActiveConsumerTag = uint64(u.TimedOut), u.SingleActive
	}
	if p := n.Pause; p != nil {
		if s.Paused = true; p.Since != 0 {
			s.Pause = &peerpb.QueuePause{By: p.By, Reason: p.Reason, Since: int64(p.Since), Until: int64(p.Until)}
		}
	}
	s.Redrive = redriveOf(n)
	oldest := n.Oldest()
	s.OldestReadyAgeMs, s.OldestUnacknowledgedAgeMs = ageOf(n, oldest.Ready, now), ageOf(n, oldest.Unacked, now)
	s.OldestScheduledAgeMs = ageOf(n, oldest.Scheduled, now)
	capacity := n.Capacity(now)
	s.ReadyByPriority, s.ConsumerCapacity = n.ReadyByPriority(), &capacity
	return s
}

// redriveOf describes the last redrive; nil: there was none.
func redriveOf(n *group.Stats) *peerpb.QueueRedrive {
	r := n.Redrive
	if r == nil {
		return nil
	}
	of := r.Redrive
	x := &peerpb.QueueRedrive{
		Number: r.Number, By: of.By, Since: r.Since, Ended: r.Ended, Why: r.Why, Rate: of.Rate, Limit: of.Limit, To: of.To,
		Taken: r.Taken, SourceGone: r.SourceGone, NoSource: r.NoSource, Refused: r.Refused,
	}
	if r.Ended == 0 {
		if x.Remaining = min(r.UpTo-r.Next, n.Ready.Messages); of.Limit > 0 {
			x.Remaining = min(x.Remaining, of.Limit-r.Taken)
		}
	}
	return x
}

// ageOf is how long ago an instant was, in ms; nil: there is none.
func ageOf(n *group.Stats, since, now fsm.Time) *uint64 {
	if since == 0 {
		return nil
	}
	age := uint64(n.Age(since, now))
	return &age
}

// talliesOf describes the messages by the value of a header.
func talliesOf(n *group.Stats, now fsm.Time) (list []*peerpb.QueueTally) {
	if n.Ages == nil {
		return nil
	}
	for _, t := range n.Ages.Tallies {
		list = append(list, &peerpb.QueueTally{
			Value: t.Value, Other: t.Other, MessagesReady: t.Ready, MessagesUnacknowledged: t.Unacked, MessagesScheduled: t.Scheduled,
			OldestReadyAgeMs: ageOf(n, t.OldestReady, now),
		})
	}
	return list
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
		MessagesDeletedTotal: c.Deleted, MessagesRedrivenTotal: c.Redriven, MessagesCopiedTotal: c.Copied,
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
	r.DiedUnroutableTotal, q.Due = s.UnroutableTotal, s.MessagesDue
	for _, t := range s.ByHeader {
		r.ByHeader = append(r.ByHeader, api.HeaderValue{
			Value: t.Value, Other: t.Other, Ready: t.MessagesReady, Unacknowledged: t.MessagesUnacknowledged, Scheduled: t.MessagesScheduled,
			OldestReadyAge: t.OldestReadyAgeMs,
		})
	}
	if r.ConsumerUtilisation = r.ConsumerCapacity; r.ConsumerCapacity != nil {
		describePriorities(r, s.ReadyByPriority)
	}
	describeLog(r, s)
	r.NextExpiryAt, r.LeaseExpiresAt = instant(s.NextExpiryAt), instant(s.LeaseExpiresAt)
	if p := s.Pause; p != nil {
		r.Pause = &api.Pause{By: p.By, Reason: p.Reason, Since: p.Since, Until: instant(p.Until)}
	}
	if x := s.Redrive; x != nil {
		r.Redrive = &api.Redrive{
			Number: x.Number, By: x.By, Since: x.Since, Ended: instant(x.Ended), Why: x.Why, Rate: x.Rate, Limit: x.Limit, To: x.To,
			Taken: x.Taken, Remaining: x.Remaining, SourceGone: x.SourceGone, NoSource: x.NoSource, Refused: x.Refused,
		}
	}
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

// expiringWithin are the times from now on, in ms, ascending, for which is counted how many messages of
// a queue expire. Each is about twice the one before, so that a minute ahead is as fine as a month.
// No message lives longer than the last one.
var expiringWithin = func() (list []uint64) {
	const day = 24 * time.Hour
	for _, d := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, day, 2 * day, 4 * day, 7 * day, 14 * day, 30 * day, 60 * day,
	} {
		list = append(list, uint64(d.Milliseconds()))
	}
	return append(list, catalog.MaxTTL)
}()

// expiringSoon are the times that are counted for all queues, to be summed up.
var expiringSoon = []uint64{uint64(time.Minute.Milliseconds()), uint64(time.Hour.Milliseconds())}

// withinFor are the times that are asked about with the stats of these queues; without ids, of all.
func withinFor(ids []fsm.QueueID) []uint64 {
	switch len(ids) {
	case 0:
		return expiringSoon
	case 1:
		return expiringWithin
	}
	return nil
}

// expiring counts the messages of a queue that expire within times from now on. It returns at most as
// many counts as there can be.
func expiring(m *queue.Machine, now fsm.Time, within []uint64) []uint64 {
	return queue.TimesOf(m).ExpiringBy(instantsOf(now, within))
}

// instantsOf are times from now on as instants.
func instantsOf(now fsm.Time, within []uint64) (list []fsm.Time) {
	for _, ms := range within {
		list = append(list, now+fsm.Time(min(ms, catalog.MaxTTL)))
	}
	return list
}

// lastOf is the last of the instants of some times, of which there is one.
func lastOf(now fsm.Time, within []uint64) fsm.Time {
	return now + fsm.Time(min(within[len(within)-1], catalog.MaxTTL))
}

// expiringFrom describes counts of a queue's leader; nil: nothing expires, or it has not been asked.
func expiringFrom(within, counts []uint64) (list []api.ExpiringWithin) {
	if len(counts) != len(within) || len(counts) == 0 || counts[len(counts)-1] == 0 {
		return nil
	}
	for i, n := range counts {
		list = append(list, api.ExpiringWithin{WithinMS: within[i], Messages: n})
		if n == counts[len(counts)-1] {
			break
		}
	}
	return list
}

// countedFor is how long a count of what comes next is good for all who ask: a page that many look at
// costs the leaders no more than one that nobody reloads.
const countedFor = 3 * time.Second

// maxSteps bounds the steps of a count for a queue, see queue.AheadBy.
const maxSteps = 16384

// aheadWithin are the times from now on, in ms, for which is counted what comes next: those of
// expiringWithin up to a day.
var aheadWithin = expiringWithin[:slices.Index(expiringWithin, uint64((24*time.Hour).Milliseconds()))+1]

// Ahead is what comes next in the queues of a cluster.
type Ahead struct {
	At     fsm.Time      // when it was counted
	Within []uint64      // ms from then on, ascending; the last one is a day
	View   *catalog.View // of the queues that there were
	// Of is what the leaders of queues say. Queues without a leader that answers are missing.
	Of map[fsm.QueueID]*peerpb.QueueTime
}

// counted is the last count.
type counted struct {
	mu   sync.Mutex
	last *Ahead // nil: there was none
	good time.Time
}

// get returns the last count while it is good; otherwise it counts, once for all who ask meanwhile.
func (c *counted) get(count func() *Ahead) *Ahead {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || !time.Now().Before(c.good) {
		c.last = count()
		c.good = time.Now().Add(countedFor)
	}
	return c.last
}

// Ahead counts what comes next in all queues, or returns a count that is at most countedFor old. The
// answer belongs to all who have asked.
func (q *Queues) Ahead(ctx context.Context) *Ahead {
	return q.ahead.get(func() *Ahead { return q.countAhead(context.WithoutCancel(ctx)) }) // it is for others, too
}

func (q *Queues) countAhead(ctx context.Context) *Ahead {
	req := &peerpb.TimeRequest{Within: aheadWithin}
	all := &Ahead{At: q.c.Clock(), Within: aheadWithin, View: q.c.Catalog.View(), Of: map[fsm.QueueID]*peerpb.QueueTime{}}
	for _, reply := range Everywhere(ctx, q.nodes, "count what comes next", answerWait, q.c.TimeKind, req, q.answerTime).Of {
		for _, x := range reply.Queues {
			all.Of[fsm.QueueID(x.Queue)] = x
		}
	}
	return all
}

// answerTime counts for the queues that this node leads. Nothing that is due is done first: it is counted as
// due at once.
func (q *Queues) answerTime(req *peerpb.TimeRequest) *peerpb.TimeReply {
	r := &peerpb.TimeReply{}
	for g := range q.led(nil) {
		if n := g.Stats(); n.Phase == queue.Active && g.Quarantined() == nil {
			r.Queues = append(r.Queues, timeOf(g, &n, max(q.c.Clock(), n.Clock), req.Within))
		}
	}
	return r
}

// timeOf says what comes next in a queue within times from now on.
func timeOf(g Group, n *group.Stats, now fsm.Time, within []uint64) *peerpb.QueueTime {
	t := &peerpb.QueueTime{Queue: uint64(g.Spec().Queue), DeletedAt: int64(n.LeaseEnd), NextAt: int64(n.NextDeadline), DeadLetters: n.DeadLetters}
	if len(within) == 0 || n.NextDeadline == 0 || n.NextDeadline > lastOf(now, within) {
		return t
	}
	g.View(func(m *queue.Machine) {
		a := queue.AheadBy(m, instantsOf(max(now, m.Clock()), within), maxSteps)
		t.Expire, t.Fire, t.TimeOut, t.Unlock, t.Retry, t.Return = some(a.Expire), some(a.Fire), some(a.TimeOut), some(a.Unlock), some(a.Retry), some(a.Return)
		t.AtLeast = a.AtLeast
	})
	return t
}

// some is a list of counts that only grow, if one of them is not 0.
func some(counts []uint64) []uint64 {
	if len(counts) == 0 || counts[len(counts)-1] == 0 {
		return nil
	}
	return counts
}
