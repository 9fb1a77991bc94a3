package catalog

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A vhost says what becomes of a declare of a queue or an exchange that exists,
// with other arguments than it has: it is refused (strict), or answered as if
// they were the same (relaxed), or the queue has the arguments of the newest
// declare from then on, as far as a policy may change them, too (adopt).

// redeclares is the version from which on a vhost says so.
const redeclares = 3

// RedeclareModes are the words for what a vhost does, by their numbers in the log.
var RedeclareModes = []string{"strict", "relaxed", "adopt"}

// RedeclareOf is what the vhost of a row does; strict if the row is nil.
func RedeclareOf(row *logpb.PutVhost) string {
	if n := int(row.GetRedeclare()); n < len(RedeclareModes) {
		return RedeclareModes[n]
	}
	return RedeclareModes[logpb.PutVhost_STRICT]
}

// ParseRedeclare reads a word of RedeclareModes. No word stands for strict.
func ParseRedeclare(word string) (logpb.PutVhost_Redeclare, error) {
	n := slices.Index(RedeclareModes, word)
	if n < 0 && word != "" {
		return 0, refuse(fsm.Precondition, "redeclare must be strict, relaxed or adopt, not %s", word)
	}
	return logpb.PutVhost_Redeclare(max(n, 0)), nil
}

// CheckRedeclare refuses what m says of declares in a cluster of an earlier version.
func (s *clusterSettings) CheckRedeclare(m *logpb.PutVhost) error {
	if m.GetRedeclare() != logpb.PutVhost_STRICT && s.FSMVersion() < redeclares {
		return refuse(fsm.Precondition, "redeclare can be set once all nodes have fsm_version %d", redeclares)
	}
	return nil
}

// tolerates reports whether the arguments of a declare may differ in a vhost.
func (vs *vhosts) tolerates(vhost string) bool {
	row, _ := vs.VHost(vhost)
	return row.GetRedeclare() == logpb.PutVhost_RELAXED || row.GetRedeclare() == logpb.PutVhost_ADOPT
}

func (vs *vhosts) adopts(vhost string) bool {
	row, _ := vs.VHost(vhost)
	return row.GetRedeclare() == logpb.PutVhost_ADOPT
}

// Difference is an argument of a declare that is not the one in force.
type Difference struct {
	Argument          string
	Received, Current *logpb.Value // nil: there is none; shared
}

// differs compares one argument of a declare with the one in force. The first
// value of that name counts on each side. Integers of different types may be
// equal; see normal.
func differs(argument string, received, current *fsm.Table) (Difference, bool) {
	d := Difference{argument, lookup(received, argument), lookup(current, argument)}
	if d.Received == nil || d.Current == nil {
		return d, d.Received != d.Current
	}
	return d, !equalValues(d.Received, d.Current)
}

// refusal is what a client is told of a difference that is not tolerated.
func (d Difference) refusal(where string) error {
	if d.Received == nil || d.Current == nil {
		return inequivalent(d.Argument, where, described(d.Received), described(d.Current))
	}
	return inequivalent(d.Argument, where, quoted(render(d.Received)), quoted(render(d.Current)))
}

// differences lists what differs in the arguments of a declare, in the order of
// queueArguments. nil: nothing that is compared.
func (s *clusterSettings) differences(received, current *fsm.Table) (list []Difference) {
	for i := range queueArguments {
		a := &queueArguments[i]
		if !a.compared || a.since > s.FSMVersion() {
			continue
		}
		if d, differ := differs(a.name, received, current); differ {
			list = append(list, d)
		}
	}
	return list
}

// exchangeDifferences is differences of an exchange. Its type is no argument,
// whatever the argument is called that names it.
func exchangeDifferences(received, current *fsm.Table) (list []Difference) {
	for _, argument := range []string{exchangeTTL, idleArgument, alternateExchange, delayedMandatory, deadLetterExchange, deadLetterRoutingKey} {
		if d, differ := differs(argument, received, current); differ {
			list = append(list, d)
		}
	}
	return list
}

// adopted are the arguments of a queue in place of those of its record. It never
// changes, so pointers to it can be compared.
//
// Invariants: arguments ≠ nil; times ≥ 1.
type adopted struct {
	arguments *fsm.Table
	times     uint64 // how often they have changed
	at        fsm.Time
}

func adoptedFrom(m *logpb.Adopted) *adopted {
	if m == nil {
		return nil
	}
	return &adopted{m.GetArguments(), m.GetTimes(), fsm.Time(m.GetAt())}
}

// row is a's form in a snapshot; nil if a is nil.
func (a *adopted) row() *logpb.Adopted {
	if a == nil {
		return nil
	}
	return &logpb.Adopted{Arguments: a.arguments, Times: a.times, At: int64(a.at)}
}

// line follows that of the policies of a queue.
func (a *adopted) line() string {
	if a == nil {
		return ""
	}
	return fmt.Sprintf(" adopted=%s times=%d at=%d", renderTable(a.arguments), a.times, a.at)
}

// arguments are those in force: what q was declared with, or what it has adopted.
func (f policyMatch) arguments(q *Queue) *fsm.Table {
	if f.adopted != nil {
		return f.adopted.arguments
	}
	return q.Arguments
}

// Arguments are those that a declare of q is compared with: as it was declared,
// but for what it has adopted.
func (vs *vhosts) Arguments(q *Queue) *fsm.Table { return vs.match(q).arguments(q) }

// Adoptions is how often q has adopted other arguments.
func (vs *vhosts) Adoptions(q *Queue) uint64 {
	if a := vs.match(q).adopted; a != nil {
		return a.times
	}
	return 0
}

// adoption is what a queue with the arguments current has after a declare with
// received; nil: the same. What policies cannot change stays as it is, what they
// can is as received, even if it is not given any more.
func (s *clusterSettings) adoption(received, current *fsm.Table) *fsm.Table {
	next, other := &fsm.Table{Fields: slices.Clone(current.GetFields())}, false
	for i := range queueArguments {
		a := &queueArguments[i]
		if !a.adoptable || a.since > s.FSMVersion() {
			continue
		}
		d, differ := differs(a.name, received, current)
		if !differ {
			continue
		}
		other = true
		next.Fields = slices.DeleteFunc(next.Fields, func(f *logpb.Field) bool { return f.GetName() == a.name })
		if d.Received != nil {
			next.Fields = append(next.Fields, &logpb.Field{Name: a.name, Value: d.Received})
		}
	}
	if !other {
		return nil
	}
	return next
}

// checkRedeclare refuses a declare of something else than q. Where its arguments
// may differ, they must be those that a new queue could have, and who declares
// it must be allowed to; so must those that q would have.
func (q *Queue) checkRedeclare(v *View, ask access, d *logpb.DeclareQueue) error {
	if err := q.sameKind(d, &v.clusterSettings); err != nil {
		return err
	}
	current := v.Arguments(q)
	list := v.differences(d.GetArguments(), current)
	switch {
	case len(list) == 0:
		return nil
	case !v.tolerates(q.VHost):
		return list[0].refusal(q.String())
	}
	if err := checkExits(ask, q.VHost, q.Name, d.GetArguments()); err != nil {
		return err
	}
	if err := v.ValidateQueueArguments(q.VHost, q.Name, d.GetArguments()); err != nil || !v.adopts(q.VHost) {
		return err
	}
	return v.ValidateQueueArguments(q.VHost, q.Name, v.adoption(d.GetArguments(), current))
}

// checkRedeclare is that of a queue for an exchange. Arguments that are not
// compared, as those of hash exchanges, may differ.
func (x *Exchange) checkRedeclare(v *View, ask access, d *logpb.DeclareExchange) error {
	if err := x.sameKind(d); err != nil {
		return err
	}
	list := exchangeDifferences(d.GetArguments(), x.Arguments)
	switch {
	case len(list) == 0:
		return nil
	case !v.tolerates(x.VHost):
		return list[0].refusal(x.String())
	}
	return checkExchangeArguments(ask, d)
}

// Drift lists what differs in a declare of q that has been checked, which is
// answered all the same. It is empty in a strict vhost.
func (q *Queue) Drift(v *View, d *logpb.DeclareQueue) []Difference {
	if !v.tolerates(q.VHost) {
		return nil
	}
	return v.differences(d.GetArguments(), v.Arguments(q))
}

// Drift lists what differs in a declare of x, like that of a queue.
func (x *Exchange) Drift(v *View, d *logpb.DeclareExchange) []Difference {
	if !v.tolerates(x.VHost) {
		return nil
	}
	return exchangeDifferences(d.GetArguments(), x.Arguments)
}

// Services that declare a queue differently would have it change with each of
// their declares. So after as many changes as freeAdoptions proposers wait with
// the next one until the last is adoptionRest ago. Apply does not: its log is
// bounded by what is proposed.
const (
	freeAdoptions = 16
	adoptionRest  = 10_000 // ms
)

// Adopts reports whether q is to have other arguments after a declare that has
// been checked. now is the proposer's clock.
func (q *Queue) Adopts(v *View, d *logpb.DeclareQueue, now fsm.Time) bool {
	if !v.adopts(q.VHost) || v.adoption(d.GetArguments(), v.Arguments(q)) == nil {
		return false
	}
	a := v.match(q).adopted
	return a == nil || a.times < freeAdoptions || now >= a.at+adoptionRest
}

// adopt gives a queue the arguments of a declare that has been checked, if its
// vhost adopts them and they are others.
func (d *draft) adopt(q *Queue, m *logpb.DeclareQueue, r *logpb.CatalogResult) {
	if !d.adopts(q.VHost) {
		return
	}
	if arguments := d.adoption(m.GetArguments(), d.match(q).arguments(q)); arguments != nil {
		d.adoptArguments(q, arguments, r)
	}
}

// adoptArguments gives a queue other arguments than it has.
func (d *draft) adoptArguments(q *Queue, arguments *fsm.Table, r *logpb.CatalogResult) {
	old := d.match(q)
	next := old
	next.adopted = &adopted{arguments, d.Adoptions(q) + 1, d.clock}
	r.Changed, r.Adopted = true, true
	d.rematched(d.open(q.VHost), q, old, next, r)
}
