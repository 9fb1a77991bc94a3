package mgmt

import (
	"context"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// queues serves queues, with the stats reported by their leaders.
type queues struct {
	queues  Queues
	node    Node
	cluster Cluster
	traffic Traffic
}

func (qs queues) list(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	var all []*catalog.Queue
	for _, vhost := range vhosts {
		all = append(all, r.view.QueuesOf(vhost)...)
	}
	q := r.URL.Query()
	l := listing[*catalog.Queue]{items: all, total: len(all)}
	if !w.choose(l.filter(q, func(x **catalog.Queue) string { return (*x).Name })) {
		return
	}
	leaders := sync.OnceValue(func() map[fsm.QueueID]stats.Queue { return qs.queues.Stats(r.Context()) })
	if !w.choose(qs.narrow(q, r.view, &l, leaders)) {
		return
	}
	if key := q.Get("sort"); key != "" {
		qs.sort(r, &l, strings.Split(key, "."), leaders)
	}
	if !w.choose(l.cut(q)) {
		return
	}
	answerListing(w, q, &l, qs.describeAll(r, l.items))
}

// sort sorts queues by a value. all are the stats of all queues, and asked for only if it takes the
// leaders to know it.
func (qs queues) sort(r *request, l *listing[*catalog.Queue], path []string, all func() map[fsm.QueueID]stats.Queue) {
	about := func(q *catalog.Queue) api.Queue { return api.Queue{Name: q.Name, VHost: q.VHost} }
	if path[0] != "name" && path[0] != "vhost" {
		var byQueue map[fsm.QueueID]stats.Queue
		var report *traffic.Report
		if shows(path[0], trafficColumns...) {
			report = qs.traffic.Traffic(r.Context(), traffic.Query{Of: peerpb.TrafficRequest_QUEUES})
		} else if needsLeader(path[0]) {
			byQueue = all()
		}
		var f stats.Queue // one for all: it is large
		about = func(q *catalog.Queue) api.Queue {
			var ok bool
			f, ok = byQueue[q.ID]
			switch {
			case report != nil:
				return trafficAlone(report, q.ID, path)
			case ok && path[0] != "node" && path[0] != "settings_in_force":
				return api.Queue{Leader: &f.Leader, QueueStats: &f.QueueStats}
			}
			return qs.describe(r.view, q, byQueue)
		}
	}
	var d api.Queue
	l.sort(r.URL.Query(), func(q **catalog.Queue) any {
		d = about(*q)
		return valueAt(reflect.ValueOf(&d), path)
	}, func(q **catalog.Queue) any { return (*q).Name })
}

// trafficAlone describes nothing of a queue but what a path of keys names, one of trafficColumns first.
func trafficAlone(report *traffic.Report, id fsm.QueueID, path []string) api.Queue {
	a := report.Queues[id]
	if path[0] != "message_stats" {
		return api.Queue{Publishers: publishers(a), LengthDetails: lengthDetails(a, report.Query)}
	}
	counters := queueCounters
	for _, c := range queueCounters {
		if len(path) > 1 && strings.TrimSuffix(path[1], "_details") == counterNames[c] {
			counters = []traffic.Counter{c}
		}
	}
	return api.Queue{MessageStats: messageStats(a, report.Query, counters)}
}

// known are the columns that a node knows of all queues.
var known = []string{
	"name", "vhost", "type", "durable", "auto_delete", "exclusive", "internal", "arguments", "policy", "operator_policy",
	"effective_policy_definition", "delivery_limit", "dead_letter_strategy", "state", "members", "online",
}

// needsLeader reports whether it takes a queue's leader to know a column.
func needsLeader(column string) bool { return !slices.Contains(known, column) }

// trafficColumns say what clients do, and how lengths change.
var trafficColumns = []string{"message_stats", "publishers", "messages_details", "messages_ready_details", "messages_unacknowledged_details"}

// describeAll describes queues as the request asks for them.
func (qs queues) describeAll(r *request, all []*catalog.Queue) []api.Queue {
	q := r.URL.Query()
	columns := q.Get("columns")
	var ids []fsm.QueueID // none: all queues
	if len(all) <= largestPage {
		for _, q := range all {
			ids = append(ids, q.ID)
		}
	}
	var byQueue map[fsm.QueueID]stats.Queue
	var report *traffic.Report
	var ask []func()
	some, full := len(all) > 0, q.Get("disable_stats") != "true"
	if some && (full || q.Get("enable_queue_totals") == "true") && (columns == "" || slices.ContainsFunc(strings.Split(columns, ","), needsLeader)) {
		ask = append(ask, func() { byQueue = qs.queues.Stats(r.Context(), ids...) })
	}
	if some && full && shows(columns, trafficColumns...) {
		of := trafficFor(r, traffic.Query{Of: peerpb.TrafficRequest_QUEUES, Queues: ids, Listed: ids != nil})
		ask = append(ask, func() { report = qs.traffic.Traffic(r.Context(), of) })
	}
	together(ask...)
	items := make([]api.Queue, len(all))
	for i, q := range all {
		items[i] = qs.describe(r.view, q, byQueue)
		addQueueTraffic(&items[i], report, q.ID)
	}
	return items
}

func (qs queues) get(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
		return
	}
	var byQueue map[fsm.QueueID]stats.Queue
	var report *traffic.Report
	var members []api.Member
	var consuming []api.Consumer
	of := trafficFor(r, traffic.Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Queue: q.ID, Pairs: true})
	ask := []func(){
		func() { byQueue = qs.queues.Stats(r.Context(), q.ID) },
		func() { report = qs.traffic.Traffic(r.Context(), of) },
		func() { consuming = consumers{qs.queues, qs.node}.of(r, []string{q.VHost}, q.ID) },
	}
	if !q.Local {
		ask = append(ask, func() { members = qs.cluster.Members(r.Context(), q) })
	}
	together(ask...)
	d := qs.describe(r.view, q, byQueue)
	addQueueTraffic(&d, report, q.ID)
	d.Incoming, d.Deliveries = withExchanges(report), withChannels(report, consumeCounters)
	d.ConsumerDetails, d.Expiring = orEmpty(consuming), byQueue[q.ID].Expiring
	d.Settings = settingsOf(r.view.EffectivePolicy(q).Said(q.Arguments))
	if d.QueueStats != nil && d.Raft != nil {
		d.Raft.Members = raftMembers(d.Raft, members)
	}
	w.answer(http.StatusOK, d)
}

func settingsOf(said []catalog.Said) []api.QueueSetting {
	given := func(v *logpb.Value) any {
		if v == nil {
			return nil
		}
		return jsonOf(v)
	}
	all := make([]api.QueueSetting, len(said))
	for i, s := range said {
		all[i] = api.QueueSetting{
			Key: s.Key, Argument: given(s.Argument), Policy: given(s.Policy), OperatorPolicy: given(s.Operator),
			Effective: jsonOf(s.Effective), By: s.By, Rule: s.Rule,
		}
	}
	return all
}

// together calls functions concurrently, each of which asks other nodes.
func together(all ...func()) { worker.Each(-1, all, func(_ int, f func()) { f() }) }

// raftMembers says how far the replicas of a queue are behind its leader.
func raftMembers(leader *api.Raft, members []api.Member) (list []api.RaftMember) {
	last := leader.LastIndex
	for i := range members {
		last = max(last, members[i].LastLogIndex)
	}
	for i := range members {
		m := &members[i]
		list = append(list, api.RaftMember{Node: m.Node, State: m.State, MatchIndex: m.LastLogIndex, Lag: last - m.LastLogIndex})
	}
	return list
}

// addQueueTraffic adds what clients do with a queue; report nil: nothing is added.
func addQueueTraffic(d *api.Queue, report *traffic.Report, id fsm.QueueID) {
	if report == nil || d.QueueStats == nil {
		return
	}
	a := report.Queues[id]
	d.MessageStats, d.LengthDetails = messageStats(a, report.Query, queueCounters), lengthDetails(a, report.Query)
	d.Publishers = publishers(a)
}

// publishers is how many channels have published to a queue; nil: a node does not say.
func publishers(a *traffic.Activity) *uint64 {
	n := uint64(0)
	if a != nil {
		if a.PublishersUnknown {
			return nil
		}
		n = a.Publishers
	}
	return &n
}

// shows reports whether a list of columns, which is all of them if it is empty, has one of these
// objects or something within.
func shows(columns string, objects ...string) bool {
	for column := range strings.SplitSeq(columns, ",") {
		object, _, _ := strings.Cut(column, ".")
		if columns == "" || slices.Contains(objects, object) {
			return true
		}
	}
	return false
}

func (qs queues) describe(v *catalog.View, q *catalog.Queue, byQueue map[fsm.QueueID]stats.Queue) api.Queue {
	policies, settings := v.EffectivePolicy(q), v.Settings(q, qs.node.Defaults())
	d := api.Queue{
		Name: q.Name, VHost: q.VHost, Type: q.Type(), Durable: q.Durable, AutoDelete: q.AutoDelete, Exclusive: q.Exclusive,
		Arguments: ObjectOf(q.Arguments), Policy: policies.Policy, OperatorPolicy: policies.Operator,
		EffectiveDefinition: ObjectOf(policies.Definition),
		DeliveryLimit:       settings.DeliveryLimit, DeadLetterStrategy: strategy(settings),
		Internal: q.StoreOf != "", State: "running", Members: []string{}, Online: []string{},
	}
	for _, number := range v.Members(q) {
		n, ok := v.Node(number)
		if !ok {
			continue
		}
		d.Members = append(d.Members, n.GetName())
		if qs.cluster.Online(n.GetName()) {
			d.Online = append(d.Online, n.GetName())
		}
	}
	switch {
	case len(d.Online) == 0:
		d.State = "down"
	case 2*len(d.Online) <= len(d.Members):
		d.State = "minority"
	}
	if f, ok := byQueue[q.ID]; ok {
		f.SettingsApplied = f.Revision >= settings.Revision
		d.Leader, d.Node, d.QueueStats = &f.Leader, f.Leader, &f.QueueStats
	} else if len(d.Members) > 0 {
		d.Node = d.Members[0]
	}
	return d
}

// strategy is how a queue's dead letters are sent.
func strategy(c *logpb.QueueConfig) string {
	if !c.GetDeadLetter() {
		return "disabled"
	}
	return strings.ReplaceAll(strings.ToLower(c.GetDeadLetterStrategy().String()), "_", "-")
}

// leaseNear is how soon a queue is deleted that the filter lease-ending lets through.
const leaseNear = time.Hour

// What GET /api/queues?filter= lets through.
const (
	withoutLeader   = "leaderless"   // no leader answers
	withoutMajority = "minority"     // half of the replicas or fewer are on nodes that are up
	withLate        = "late"         // consumers have not settled what was taken back from them
	withLeaseEnding = "lease-ending" // the queue is deleted within leaseNear unless it is used
)

// narrow keeps the queues that the request's filter lets through. all are the stats of all queues,
// and not asked for unless it takes a leader to know.
func (qs queues) narrow(q url.Values, v *catalog.View, l *listing[*catalog.Queue], all func() map[fsm.QueueID]stats.Queue) *api.Failure {
	var keep func(x *catalog.Queue) bool
	switch q.Get("filter") {
	case "":
		return nil
	case withoutMajority:
		keep = func(x *catalog.Queue) bool { return qs.describe(v, x, nil).State != "running" }
	case withoutLeader:
		keep = func(x *catalog.Queue) bool { _, led := all()[x.ID]; return !led }
	case withLate:
		keep = func(x *catalog.Queue) bool { return all()[x.ID].ConsumersTimedOut > 0 }
	case withLeaseEnding:
		end := int64(qs.node.Now()) + leaseNear.Milliseconds()
		keep = func(x *catalog.Queue) bool {
			at := all()[x.ID].LeaseExpiresAt
			return at != nil && *at <= end
		}
	default:
		return &api.Failure{Error: "bad_request", Reason: "filter must be one of leaderless, minority, late and lease-ending"}
	}
	l.items = slices.DeleteFunc(slices.Clone(l.items), func(x *catalog.Queue) bool { return !keep(x) })
	l.filtered = len(l.items)
	return nil
}

// queueActions serves what operators do with one queue.
type queueActions struct {
	placement Placement
	messages  Messages
	queues    Queues
	consumers Connections
}

// perform does the action that the body names.
func (a queueActions) perform(w *responder, r *request) {
	name := r.PathValue("name")
	if !w.finds(r, name) {
		return
	}
	b, ok := w.body(r)
	if !ok || w.missing(b, "action") {
		return
	}
	var do func(context.Context, *catalog.Queue, body) error
	var keys []string
	switch action := b.word("action"); action {
	case "transfer_leadership":
		do, keys = a.transfer, []string{"node"}
	case "snapshot":
		do = a.snapshot
	case "expire_now":
		do = a.expire
	case "cancel_consumer":
		do, keys = a.cancel, []string{"tag", "channel"}
	default:
		w.badRequest("unsupported action: " + action)
		return
	}
	if !r.has(administrator) {
		w.unauthorized("not_authorised", levels[administrator].reason)
		return
	}
	if w.missing(b, keys...) {
		return
	}
	for _, key := range keys {
		if _, err := b.text(key); err != nil {
			w.failed(err)
			return
		}
	}
	q, _ := r.view.Queue(r.PathValue("vhost"), name)
	w.changed(do(r.Context(), q, b), false)
}

func (a queueActions) transfer(ctx context.Context, q *catalog.Queue, b body) error {
	return a.placement.TransferLeadership(ctx, q, b.word("node"))
}

func (a queueActions) snapshot(ctx context.Context, q *catalog.Queue, _ body) error {
	return a.placement.Snapshot(ctx, q)
}

func (a queueActions) expire(ctx context.Context, q *catalog.Queue, _ body) error {
	return a.messages.ExpireDue(ctx, q)
}

// cancel cancels the consumer with a tag on a channel.
func (a queueActions) cancel(ctx context.Context, q *catalog.Queue, b body) error {
	tag, channel := b.word("tag"), b.word("channel")
	for _, c := range a.queues.Consumers(ctx, q.ID) {
		at, known := c.Channel.(api.ChannelDetails)
		if !known || c.Tag != tag || at.Name != channel {
			continue
		}
		if found, err := a.consumers.CancelConsumer(ctx, q, at, tag); found || err != nil {
			return err
		}
	}
	return fsm.Refuse(fsm.NotFoundKind, "consumer_not_found")
}
