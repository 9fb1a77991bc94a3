package stats

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// Numbers are the same few numbers of all queues, as their leaders say: what it takes to sort, to filter and to sum
// up queues, of which only some are then described. Queues that have ended, and those without a leader that answers,
// are missing.
type Numbers struct {
	names  []string
	within []uint64 // see Expiring
	rows   map[fsm.QueueID]int
	// Of each row: who leads the queue, and a number for each of names and of within.
	leaders []string
	values  []uint64
}

// NewNumbers returns numbers with some names, which the API gives them, of no queue. soon: it is counted, too, how many
// messages expire.
func NewNumbers(soon bool, names ...string) *Numbers {
	n := &Numbers{names: names, rows: map[fsm.QueueID]int{}}
	if soon {
		n.within = expiringSoon
	}
	return n
}

// Numbers asks the leaders of all queues for numbers, see NewNumbers. Each name IsNumber.
func (q *Queues) Numbers(ctx context.Context, soon bool, names ...string) *Numbers {
	n := NewNumbers(soon, names...)
	req := &peerpb.QueueStatsRequest{Columns: names, ExpiringWithin: n.within}
	for node, reply := range Everywhere(ctx, q.nodes, "read numbers of queues", answerWait, q.c.Kind, req, q.answer).Of {
		n.addReply(node, reply)
	}
	return n
}

// Add adds what the API shows of a queue.
func (n *Numbers) Add(id fsm.QueueID, q *Queue) {
	row := n.row(id, q.Leader)
	shown := reflect.ValueOf(&q.QueueStats).Elem()
	for i, name := range n.names {
		switch v := reflect.Indirect(shown.FieldByIndex(shownNumbers[name])); {
		case !v.IsValid(): // there is no such instant
		case v.CanInt():
			row[i] = uint64(v.Int())
		default:
			row[i] = v.Uint()
		}
	}
	for i, within := range n.within {
		for _, x := range q.Expiring { // the last count holds from there on
			if x.WithinMS <= within {
				row[len(n.names)+i] = x.Messages
			}
		}
	}
}

// row returns the empty row of a queue.
func (n *Numbers) row(id fsm.QueueID, leader string) []uint64 {
	width := len(n.names) + len(n.within)
	i, known := n.rows[id]
	if !known {
		i = len(n.leaders)
		n.rows[id], n.leaders, n.values = i, append(n.leaders, ""), slices.Grow(n.values, width)[:(i+1)*width]
	}
	n.leaders[i] = leader
	row := n.values[i*width : (i+1)*width]
	clear(row)
	return row
}

// addReply adds what a node answers. One of an earlier version answers with all that it knows of its queues; what is
// not in the form of an answer is left out.
func (n *Numbers) addReply(node string, r *peerpb.QueueStatsReply) {
	var one Queue
	for _, s := range r.Queues {
		if !s.Gone {
			one.from(node, s)
			one.Expiring = expiringFrom(n.within, s.Expiring)
			n.Add(fsm.QueueID(s.Queue), &one)
		}
	}
	if len(r.Columns) != len(n.names)+len(n.within) ||
		slices.ContainsFunc(r.Columns, func(c *peerpb.QueueColumn) bool { return len(c.Values) != 0 && len(c.Values) != len(r.Ids) }) {
		return
	}
	if len(n.rows) == 0 { // nodes lead about as many queues each: one of three that answer
		n.rows = make(map[fsm.QueueID]int, 3*len(r.Ids))
	}
	n.leaders, n.values = slices.Grow(n.leaders, len(r.Ids)), slices.Grow(n.values, len(r.Ids)*len(r.Columns))
	for i, id := range r.Ids {
		row := n.row(fsm.QueueID(id), node)
		for k, c := range r.Columns {
			if c.Values != nil {
				row[k] = c.Values[i]
			}
		}
	}
}

// Leader is the node that leads a queue; empty: it is not known.
func (n *Numbers) Leader(id fsm.QueueID) string {
	if i, ok := n.rows[id]; ok {
		return n.leaders[i]
	}
	return ""
}

// Of returns the numbers of a queue, in the order of their names, which are n's; nil: they are not known.
func (n *Numbers) Of(id fsm.QueueID) []uint64 {
	i, ok := n.rows[id]
	if !ok {
		return nil
	}
	width := len(n.names) + len(n.within)
	return n.values[i*width : (i+1)*width]
}

// Number returns one of the numbers of a queue; false: it is not known.
func (n *Numbers) Number(id fsm.QueueID, name string) (uint64, bool) {
	if row, i := n.Of(id), slices.Index(n.names, name); row != nil && i >= 0 {
		return row[i], true
	}
	return 0, false
}

// Expiring is how many messages of a queue expire soon; its numbers are known.
func (n *Numbers) Expiring(id fsm.QueueID) []api.ExpiringWithin {
	return expiringFrom(n.within, n.Of(id)[len(n.names):])
}

// IsNumber reports whether leaders can be asked for the numbers with this name of all queues at once.
func IsNumber(name string) bool { return numbersByName[name] != nil }

// numbersByName are the numbers that leaders can be asked for of all queues at once.
var numbersByName = map[string]func(s *group.Stats) uint64{
	"messages":                     func(s *group.Stats) uint64 { return total(s).Messages },
	"message_bytes":                func(s *group.Stats) uint64 { return total(s).Bytes },
	"messages_ready":               func(s *group.Stats) uint64 { return s.Ready.Messages },
	"message_bytes_ready":          func(s *group.Stats) uint64 { return s.Ready.Bytes },
	"messages_ready_returned":      func(s *group.Stats) uint64 { return s.Returned },
	"messages_unacknowledged":      func(s *group.Stats) uint64 { return s.Unacknowledged.Messages },
	"message_bytes_unacknowledged": func(s *group.Stats) uint64 { return s.Unacknowledged.Bytes },
	"consumers":                    func(s *group.Stats) uint64 { return uint64(s.Consumers) },
	"next_expiry_at":               func(s *group.Stats) uint64 { return uint64(s.NextExpiry) },
	"lease_expires_at":             func(s *group.Stats) uint64 { return uint64(s.LeaseEnd) },
	"consumers_timed_out": func(s *group.Stats) uint64 {
		if s.Use == nil {
			return 0
		}
		return uint64(s.Use.TimedOut)
	},

	"messages_scheduled":           rare(func(s *queue.Stats) uint64 { return s.Scheduled.Messages }),
	"message_bytes_scheduled":      rare(func(s *queue.Stats) uint64 { return s.Scheduled.Bytes }),
	"messages_delayed":             rare(func(s *queue.Stats) uint64 { return s.Scheduled.Messages + s.Delayed.Messages }),
	"message_bytes_delayed":        rare(func(s *queue.Stats) uint64 { return s.Scheduled.Bytes + s.Delayed.Bytes }),
	"messages_delayed_retry":       rare(func(s *queue.Stats) uint64 { return s.Delayed.Messages }),
	"messages_deferred":            rare(func(s *queue.Stats) uint64 { return s.Deferred.Messages }),
	"message_bytes_deferred":       rare(func(s *queue.Stats) uint64 { return s.Deferred.Bytes }),
	"messages_parked":              rare(func(s *queue.Stats) uint64 { return s.Parked.Messages }),
	"message_bytes_parked":         rare(func(s *queue.Stats) uint64 { return s.Parked.Bytes }),
	"messages_locked":              rare(func(s *queue.Stats) uint64 { return uint64(s.Locked) }),
	"messages_dlx":                 rare(func(s *queue.Stats) uint64 { return s.Outbox.Messages }),
	"message_bytes_dlx":            rare(func(s *queue.Stats) uint64 { return s.Outbox.Bytes }),
	"messages_dlx_waiting":         rare(func(s *queue.Stats) uint64 { return s.Waiting.Messages }),
	"messages_forwarding":          rare(func(s *queue.Stats) uint64 { return s.Forwarding.Messages }),
	"messages_expired_total":       rare(func(s *queue.Stats) uint64 { return s.Counters.Expired }),
	"messages_dead_lettered_total": rare(func(s *queue.Stats) uint64 { return s.Counters.DeadLettered }),
	"messages_timed_out_total":     rare(func(s *queue.Stats) uint64 { return s.Counters.TimedOut }),
}

// rare is a number that few queues have.
func rare(f func(s *queue.Stats) uint64) func(s *group.Stats) uint64 {
	return func(s *group.Stats) uint64 {
		if s.Rest == nil {
			return 0
		}
		return f(s.Rest)
	}
}

// total is all that a queue has.
func total(s *group.Stats) (sum queue.Count) {
	add := func(c queue.Count) { sum.Messages, sum.Bytes = sum.Messages+c.Messages, sum.Bytes+c.Bytes }
	add(s.Ready)
	add(s.Unacknowledged)
	if r := s.Rest; r != nil {
		for _, c := range [...]queue.Count{r.Scheduled, r.Delayed, r.Deferred, r.Parked, r.Outbox} {
			add(c)
		}
	}
	return sum
}

// shownNumbers finds the fields of api.QueueStats that have the names of numbers.
var shownNumbers = func() map[string][]int {
	all := map[string][]int{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[api.QueueStats]()) {
		if name := jsonName(f); IsNumber(name) {
			all[name] = f.Index
		}
	}
	return all
}()

// columnsOf finds numbers by their names; nil: there are none, or one is not known, as a later version asks for it.
func columnsOf(names []string) (of []func(s *group.Stats) uint64) {
	for _, name := range names {
		f := numbersByName[name]
		if f == nil {
			return nil
		}
		of = append(of, f)
	}
	return of
}

// answerColumns answers with some numbers of the queues that this node leads.
func (q *Queues) answerColumns(req *peerpb.QueueStatsRequest, of []func(s *group.Stats) uint64, end time.Time) *peerpb.QueueStatsReply {
	r := &peerpb.QueueStatsReply{}
	for range len(of) + len(req.ExpiringWithin) {
		r.Columns = append(r.Columns, &peerpb.QueueColumn{})
	}
	add := func(column int, value uint64) {
		c := r.Columns[column]
		if c.Values == nil && value != 0 {
			c.Values = make([]uint64, len(r.Ids)-1, 2*len(r.Ids)) // those before have had 0
		}
		if c.Values != nil {
			c.Values = append(c.Values, value)
		}
	}
	var n group.Stats // one for all
	for g := range q.led(req.Queues) {
		var ok bool
		if n, ok = q.numbersOf(g, end); !ok || n.Phase != queue.Active {
			continue
		}
		r.Ids = append(r.Ids, uint64(g.Spec().Queue))
		for i, f := range of {
			add(i, f(&n))
		}
		expiring := q.expiring(g, &n, req.ExpiringWithin)
		for i := range req.ExpiringWithin {
			if expiring == nil {
				add(len(of)+i, 0)
			} else {
				add(len(of)+i, expiring[i])
			}
		}
	}
	return r
}
