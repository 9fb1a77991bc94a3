package traffic

import "github.com/quorate/quorate/fsm"

// Tally is what a session has counted since it was last added to the table. The session's lock
// guards it.
type Tally struct {
	confirms  bool   // the session is in confirm mode
	own       Counts // Confirm, Confirmable, and what has no route
	exchanges map[string]*Counts
	recent    *Counts // of the exchange published to last; nil: none
	name      string  // of that exchange
	queues    []QueueCounts
	sizes     Sizes
}

// QueueCounts are counts of a queue. Local: it has one replica, which is not on disk.
type QueueCounts struct {
	VHost  string
	Queue  fsm.QueueID
	Local  bool
	Counts Counts
	routes map[string]*uint64
}

// Routes counts the copies of a session's messages that go to a queue, by the exchange that they were
// published to. The session's lock guards it.
type Routes struct {
	all    map[string]*uint64
	recent *uint64 // of the exchange published to last; nil: none
	name   string  // of that exchange
}

// Count counts a copy of a message that was published to an exchange.
func (r *Routes) Count(exchange string) {
	if r.recent == nil || r.name != exchange {
		r.use(exchange)
	}
	*r.recent++
}

func (r *Routes) use(exchange string) {
	if r.all == nil {
		r.all = map[string]*uint64{}
	}
	if r.recent = r.all[exchange]; r.recent == nil {
		r.recent = new(uint64)
		r.all[exchange] = r.recent
	}
	r.name = exchange
}

// Published counts a message of a size that was published to an exchange and went to this number of
// queues.
func (t *Tally) Published(exchange string, bytes, copies int, confirm bool) {
	t.sizes.count(bytes)
	if t.recent == nil || t.name != exchange {
		t.use(exchange)
	}
	t.recent[Publish]++
	t.recent[PublishOut] += uint64(copies)
	if confirm {
		t.confirms = true
		t.own[Confirmable]++
	}
}

func (t *Tally) use(exchange string) {
	if t.exchanges == nil {
		t.exchanges = map[string]*Counts{}
	}
	if t.recent = t.exchanges[exchange]; t.recent == nil {
		t.recent = &Counts{}
		t.exchanges[exchange] = t.recent
	}
	t.name = exchange
}

// Confirmed counts a message as confirmed, if the session is in confirm mode.
func (t *Tally) Confirmed() {
	if t.confirms {
		t.own[Confirm]++
	}
}

// Count counts something that belongs to neither an exchange nor a queue.
func (t *Tally) Count(c Counter) { t.own[c]++ }

// TakeQueue adds the counts that the session holds of a queue, and sets them to zero.
//
// Requires: routes counts no copy that is not among counts.
func (t *Tally) TakeQueue(q QueueCounts, counts *Counts, routes *Routes) {
	if *counts == (Counts{}) {
		return
	}
	q.Counts, *counts = *counts, Counts{}
	q.routes, *routes = routes.all, Routes{}
	t.queues = append(t.queues, q)
}

// Take returns the tally and leaves an empty one.
func (t *Tally) Take() Tally {
	taken := *t
	*t = Tally{confirms: taken.confirms}
	return taken
}
