package mgmt

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/tables"
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
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	var all []*catalog.Queue
	for _, vhost := range vhosts {
		all = slices.AppendSeq(all, r.view.EachQueueOf(vhost))
	}
	q := r.URL.Query()
	l := listing[*catalog.Queue]{items: all, total: len(all)}
	if !w.choose(l.filter(q, func(x **catalog.Queue) string { return (*x).Name })) {
		return
	}
	numbers := qs.numbers(r)
	if !w.choose(qs.narrow(q, r.view, &l, numbers)) {
		return
	}
	from, to, failure := l.bounds(q)
	if !w.choose(failure) {
		return
	}
	l.items = qs.sort(r, l.items, vhosts, numbers).part(from, to)
	if l.page == nil && len(l.items) > largestPage {
		qs.stream(w, r, l.items)
		return
	}
	answerListing(w, q, &l, qs.describeAll(r, l.items, false))
}

// numbers asks for the numbers of all queues that it takes to filter and to sort them, once somebody needs them.
func (qs queues) numbers(r *request) func() *stats.Numbers {
	names := []string{"messages_ready"} // to ask for nothing is to ask for all
	for _, name := range []string{r.URL.Query().Get("sort"), "consumers_timed_out", "lease_expires_at"} {
		if stats.IsNumber(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return sync.OnceValue(func() *stats.Numbers { return qs.queues.Numbers(r.Context(), false, names...) })
}

// sort prepares to sort queues, as the request says, or by the order of the vhosts and the name.
func (qs queues) sort(r *request, items []*catalog.Queue, vhosts []string, numbers func() *stats.Numbers) *ordered {
	o := &ordered{rows: make([]orderedQueue, len(items)), vhosts: map[string]int{}, reverse: r.URL.Query().Get("sort_reverse") == "true"}
	for i, vhost := range vhosts {
		o.vhosts[vhost] = i
	}
	for i, q := range items {
		o.rows[i].of = q
	}
	if key := r.URL.Query().Get("sort"); key != "" {
		value := qs.key(r, key, numbers)
		o.byValue = true
		for i, q := range items {
			o.rows[i].value = value(q)
		}
	}
	return o
}

// key returns the value of a queue to sort by.
func (qs queues) key(r *request, key string, numbers func() *stats.Numbers) func(q *catalog.Queue) any {
	switch {
	case key == "name":
		return func(q *catalog.Queue) any { return q.Name }
	case key == "vhost":
		return func(q *catalog.Queue) any { return q.VHost }
	case key == "type":
		return func(q *catalog.Queue) any { return q.Type() }
	case key == "state":
		return func(q *catalog.Queue) any { return qs.state(r.view, q) }
	case key == "leader":
		return func(q *catalog.Queue) any {
			if leader := numbers().Leader(q.ID); leader != "" {
				return leader
			}
			return nil
		}
	case stats.IsNumber(key):
		instant := strings.HasSuffix(key, "_at")
		return func(q *catalog.Queue) any {
			n, ok := numbers().Number(q.ID, key)
			if !ok || instant && n == 0 {
				return nil
			}
			return float64(n)
		}
	}
	path := strings.Split(key, ".")
	describe := qs.described(r, path)
	var d api.Queue
	return func(q *catalog.Queue) any {
		d = describe(q)
		return valueAt(reflect.ValueOf(&d), path)
	}
}

// described returns what describes a queue as far as a path of keys says.
func (qs queues) described(r *request, path []string) func(q *catalog.Queue) api.Queue {
	var byQueue map[fsm.QueueID]stats.Queue
	if shows(path[0], trafficColumns...) {
		report := qs.traffic.Traffic(r.Context(), traffic.Query{Of: peerpb.TrafficRequest_QUEUES})
		return func(q *catalog.Queue) api.Queue { return trafficAlone(report, q.ID, path) }
	}
	if needsLeader(path[0]) {
		byQueue = qs.queues.Stats(r.Context())
	}
	var f stats.Queue // one for all: it is large
	return func(q *catalog.Queue) api.Queue {
		var ok bool
		if f, ok = byQueue[q.ID]; ok && path[0] != "node" && path[0] != "settings_in_force" {
			return api.Queue{Leader: &f.Leader, QueueStats: &f.QueueStats}
		}
		return qs.describe(r.view, q, byQueue)
	}
}

// ordered are queues of which a part is to be in order: nobody reads the rest of a long list.
type ordered struct {
	rows    []orderedQueue
	vhosts  map[string]int // their order
	byValue bool           // first
	reverse bool           // the values
}

type orderedQueue struct {
	of    *catalog.Queue
	value any // see valueAt
}

// compare orders by the value, missing ones first, then by name, then by vhost; without values by vhost and name.
func (o *ordered) compare(a, b orderedQueue) int {
	if !o.byValue {
		return cmp.Or(o.compareVHosts(a, b), cmp.Compare(a.of.Name, b.of.Name))
	}
	c := compareValues(a.value, b.value)
	if o.reverse {
		c = -c
	}
	if c == 0 {
		c = cmp.Compare(a.of.Name, b.of.Name)
	}
	return cmp.Or(c, o.compareVHosts(a, b))
}

func (o *ordered) compareVHosts(a, b orderedQueue) int {
	if a.of.VHost == b.of.VHost {
		return 0
	}
	return cmp.Compare(o.vhosts[a.of.VHost], o.vhosts[b.of.VHost])
}

// part returns the queues from one place in the order up to another. It sorts only these: O(n) for a page of n queues,
// wherever it is.
func (o *ordered) part(from, to int) []*catalog.Queue {
	o.divide(o.rows, from)
	rows := o.rows[from:]
	o.divide(rows, to-from)
	rows = rows[:to-from]
	slices.SortFunc(rows, o.compare)
	part := make([]*catalog.Queue, len(rows))
	for i := range rows {
		part[i] = rows[i].of
	}
	return part
}

// divide puts the first k of the order before the others. 0 ≤ k ≤ len(rows).
func (o *ordered) divide(rows []orderedQueue, k int) {
	for k > 0 && k < len(rows) {
		pivot, below, at := rows[rand.IntN(len(rows))], 0, 0
		for i := range rows {
			switch c := o.compare(rows[i], pivot); {
			case c < 0:
				rows[i], rows[below] = rows[below], rows[i]
				below++
			case c == 0:
				at = i
			}
		}
		if below == 0 { // nothing comes before it
			rows[0], rows[at] = rows[at], rows[0]
			below = 1
		}
		if k < below {
			rows = rows[:below]
		} else {
			rows, k = rows[below:], k-below
		}
	}
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

// describeAll describes queues as the request asks for them. inPart: they are a part of a long list.
func (qs queues) describeAll(r *request, all []*catalog.Queue, inPart bool) []api.Queue {
	q := r.URL.Query()
	columns, leaders := q.Get("columns"), qs.queues.Stats
	if inPart {
		leaders = qs.queues.StatsAsIs
	}
	var ids []fsm.QueueID
	for _, q := range all {
		ids = append(ids, q.ID)
	}
	var byQueue map[fsm.QueueID]stats.Queue
	var report *traffic.Report
	var ask []func()
	some, full := len(all) > 0, q.Get("disable_stats") != "true"
	if some && (full || q.Get("enable_queue_totals") == "true") && (columns == "" || slices.ContainsFunc(strings.Split(columns, ","), needsLeader)) {
		ask = append(ask, func() { byQueue = leaders(r.Context(), ids...) })
	}
	if some && full && shows(columns, trafficColumns...) {
		of := trafficFor(r, traffic.Query{Of: peerpb.TrafficRequest_QUEUES, Queues: ids, Listed: !inPart})
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

// stream answers with a long list, of which it holds a page at a time.
func (qs queues) stream(w *responder, r *request, all []*catalog.Queue) {
	columns := r.URL.Query().Get("columns")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	before := "["
	for some := range slices.Chunk(all, largestPage) {
		rows, err := rowsOf(qs.describeAll(r, some, true), columns)
		if err == nil {
			var text []byte
			if text, err = json.Marshal(rows); err == nil {
				text[0] = before[0] // of each part but the first what divides it from the one before
				before = ","
				_, err = w.Write(text[:len(text)-1])
			}
		}
		if err == nil {
			err = r.Context().Err()
		}
		if err != nil {
			w.written(err)
			panic(http.ErrAbortHandler) // the client sees that the list is cut off
		}
	}
	_, err := io.WriteString(w, "]\n")
	w.written(err)
}

func (qs queues) get(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
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
	d.Settings = settingsOf(r.view.EffectivePolicy(q).Said(r.view.Arguments(q)))
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
		return tables.JSONValue(v)
	}
	all := make([]api.QueueSetting, len(said))
	for i, s := range said {
		all[i] = api.QueueSetting{
			Key: s.Key, Argument: given(s.Argument), Policy: given(s.Policy), OperatorPolicy: given(s.Operator),
			Effective: tables.JSONValue(s.Effective), By: s.By, Rule: s.Rule,
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
		Arguments: tables.JSON(v.Arguments(q)), Policy: policies.Policy, OperatorPolicy: policies.Operator,
		EffectiveDefinition: tables.JSON(policies.Definition),
		DeliveryLimit:       settings.DeliveryLimit, DeadLetterStrategy: strategy(settings),
		Internal: q.StoreOf != "", Members: []string{}, Online: []string{},
	}
	for name, online := range qs.members(v, q) {
		d.Members = append(d.Members, name)
		if online {
			d.Online = append(d.Online, name)
		}
	}
	d.State = stateBy(len(d.Members), len(d.Online))
	if f, ok := byQueue[q.ID]; ok {
		f.SettingsApplied = f.Revision >= settings.Revision
		d.Leader, d.Node, d.QueueStats = &f.Leader, f.Leader, &f.QueueStats
	} else if len(d.Members) > 0 {
		d.Node = d.Members[0]
	}
	return d
}

// members yields the nodes that have replicas of a queue, and whether they are up.
func (qs queues) members(v *catalog.View, q *catalog.Queue) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, number := range v.Members(q) {
			if n, ok := v.Node(number); ok && !yield(n.GetName(), qs.cluster.Online(n.GetName())) {
				return
			}
		}
	}
}

// stateBy is the state of a queue with so many replicas.
func stateBy(members, online int) string {
	switch {
	case online == 0:
		return "down"
	case 2*online <= members:
		return "minority"
	}
	return "running"
}

// state is the state of a queue.
func (qs queues) state(v *catalog.View, q *catalog.Queue) string {
	members, up := 0, 0
	for _, online := range qs.members(v, q) {
		if members++; online {
			up++
		}
	}
	return stateBy(members, up)
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

// narrow keeps the queues that the request's filter lets through. numbers are those of all queues,
// and not asked for unless it takes a leader to know.
func (qs queues) narrow(q url.Values, v *catalog.View, l *listing[*catalog.Queue], numbers func() *stats.Numbers) *api.Failure {
	var keep func(x *catalog.Queue) bool
	switch q.Get("filter") {
	case "":
		return nil
	case withoutMajority:
		keep = func(x *catalog.Queue) bool { return qs.state(v, x) != "running" }
	case withoutLeader:
		keep = func(x *catalog.Queue) bool { return numbers().Of(x.ID) == nil }
	case withLate:
		keep = func(x *catalog.Queue) bool { n, _ := numbers().Number(x.ID, "consumers_timed_out"); return n > 0 }
	case withLeaseEnding:
		end := uint64(qs.node.Now()) + uint64(leaseNear.Milliseconds())
		keep = func(x *catalog.Queue) bool {
			at, _ := numbers().Number(x.ID, "lease_expires_at")
			return at != 0 && at <= end
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
	q := w.queue(r)
	if q == nil {
		return
	}
	b, ok := w.body(r, "action")
	if !ok {
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
