package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// Some objects are of an application that has more to say of them than arguments:
// it describes them, finds them by keys of its own, makes several of them one, and
// lets others in by keys that it gives out. The catalog reads none of that.

// descriptionsSince is the version from which on it keeps that.
const descriptionsSince = 3

// Bounds of what is kept, in bytes.
const (
	maxDescription    = 8 << 10
	maxDescriptionKey = 512
	maxAccessKey      = 256
	// MaxAccessKeys is how many there may be of a vhost, and of an object.
	MaxAccessKeys = 12
)

// descriptions are those of one vhost.
//
// Invariants: each row stands under its key, and is the one of its object, which is
// there.
type descriptions struct {
	byKey    route.Map[string, *logpb.Describe]
	byObject route.Map[endpoint, *logpb.Describe]
}

func objectOf(m *logpb.Describe) endpoint { return endpoint{m.GetName(), m.GetExchange()} }

// put adds a description, or replaces that of the same object.
func (ds *descriptions) put(m *logpb.Describe) {
	ds.byKey, ds.byObject = ds.byKey.With(m.GetKey(), m), ds.byObject.With(objectOf(m), m)
}

// find returns a description; nil: none has the key.
func (ds *descriptions) find(key string) *logpb.Describe { return ds.byKey.At(key) }

// of returns that of an object; nil: it has none.
func (ds *descriptions) of(e endpoint) *logpb.Describe { return ds.byObject.At(e) }

// forget removes the description of an object, and returns its key; empty: it has
// none.
func (ds *descriptions) forget(e endpoint) (key string) {
	if m := ds.of(e); m != nil {
		key = m.GetKey()
		ds.byKey, ds.byObject = ds.byKey.Without(key), ds.byObject.Without(e)
	}
	return key
}

// list returns the descriptions by key.
func (ds *descriptions) list() []*logpb.Describe {
	return sorted(ds.byKey, func(a, b *logpb.Describe) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
}

func (ds *descriptions) check(there func(endpoint) bool) error {
	for key, m := range ds.byKey.All() {
		if m.GetKey() != key || ds.of(objectOf(m)) != m || !there(objectOf(m)) {
			return fmt.Errorf("the description of %q stands under %q", m.GetName(), key)
		}
	}
	if ds.byKey.Len() != ds.byObject.Len() {
		return fmt.Errorf("%d descriptions of %d objects", ds.byKey.Len(), ds.byObject.Len())
	}
	return nil
}

// accessScope names one access key of a vhost.
type accessScope struct{ scope, name string }

// accessKeys are those of one vhost. They are in the log and in snapshots, as the
// hashes of passwords are, and in no text, list or export.
//
// Invariant: each row stands under its scope and name, and its scope is a key of a
// description, or empty.
type accessKeys struct {
	keyRows route.Map[accessScope, *logpb.AccessKey]
}

func (ks *accessKeys) find(scope, name string) *logpb.AccessKey {
	return ks.keyRows.At(accessScope{scope, name})
}

// list returns the keys of all scopes, by scope and name.
func (ks *accessKeys) list() []*logpb.AccessKey {
	return sorted(ks.keyRows, func(a, b *logpb.AccessKey) int {
		return cmp.Or(cmp.Compare(a.GetScope(), b.GetScope()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// of returns those of one scope, by name.
func (ks *accessKeys) of(scope string) []*logpb.AccessKey {
	return slices.DeleteFunc(ks.list(), func(m *logpb.AccessKey) bool { return m.GetScope() != scope })
}

func (ks *accessKeys) put(m *logpb.AccessKey) {
	ks.keyRows = ks.keyRows.With(accessScope{m.GetScope(), m.GetName()}, m)
}

func (ks *accessKeys) remove(scope, name string) {
	ks.keyRows = ks.keyRows.Without(accessScope{scope, name})
}

// forget removes all keys of a scope.
func (ks *accessKeys) forget(scope string) {
	for _, m := range ks.of(scope) {
		ks.remove(scope, m.GetName())
	}
}

func (ks *accessKeys) check(there func(scope string) bool) error {
	for at, m := range ks.keyRows.All() {
		if (at != accessScope{m.GetScope(), m.GetName()}) || m.GetScope() != "" && !there(m.GetScope()) {
			return fmt.Errorf("access key %q of %q stands under %q of %q", m.GetName(), m.GetScope(), at.name, at.scope)
		}
	}
	return nil
}

// wholes are the objects of one vhost that others are parts of.
//
// Invariants: each list has the queues whose PartOf is its object, which is there,
// and is not empty.
type wholes struct {
	partsOf route.Map[endpoint, route.Map[fsm.QueueID, *Queue]]
}

func (ws *wholes) add(q *Queue) {
	if of := q.PartOf; of.name != "" {
		ws.partsOf = ws.partsOf.With(of, ws.partsOf.At(of).With(q.ID, q))
	}
}

func (ws *wholes) remove(q *Queue) {
	if of := q.PartOf; of.name == "" {
		return
	} else if left := ws.partsOf.At(of).Without(q.ID); left.Len() > 0 {
		ws.partsOf = ws.partsOf.With(of, left)
	} else {
		ws.partsOf = ws.partsOf.Without(of)
	}
}

// parts returns the queues that are parts of an object, the oldest first.
func (ws *wholes) parts(of endpoint) []*Queue { return sorted(ws.partsOf.At(of), byAge) }

func (ws *wholes) check(there func(endpoint) bool, parts int) error {
	for of, list := range ws.partsOf.All() {
		parts -= list.Len()
		if list.Len() == 0 || !there(of) {
			return fmt.Errorf("%q has no parts, or is not there", of.name)
		}
	}
	if parts != 0 {
		return fmt.Errorf("%d parts are not with their wholes", parts)
	}
	return nil
}

// there reports whether a vhost has an object.
func (vh *vhost) there(e endpoint) bool {
	if e.isExchange {
		return vh.exchanges.at(e.name) != nil
	}
	return vh.queues.At(e.name) != nil
}

// checkDescribed compares what is said of objects with these.
func (vh *vhost) checkDescribed() error {
	parts := 0
	for q := range vh.queues.Values() {
		if q.PartOf.name != "" {
			parts++
		}
	}
	if err := vh.descriptions.check(vh.there); err != nil {
		return err
	}
	if err := vh.wholes.check(vh.there, parts); err != nil {
		return err
	}
	return vh.accessKeys.check(func(scope string) bool { return vh.descriptions.find(scope) != nil })
}

// saveDescribed is the section of a vhost about that in a snapshot.
func (vh *vhost) saveDescribed(to *logpb.CatalogSnapshot) {
	to.Descriptions = append(to.Descriptions, vh.descriptions.list()...)
	to.AccessKeys = append(to.AccessKeys, vh.accessKeys.list()...)
}

// describeText writes what is said of objects, without secrets.
func (vh *vhost) describeText(b *strings.Builder) {
	for _, m := range vh.descriptions.list() {
		kind := kindQueue
		if m.GetExchange() {
			kind = kindExchange
		}
		fmt.Fprintf(b, "  description %s of %s %s text=%q created=%d updated=%d\n", m.GetKey(), kind, m.GetName(), m.GetText(), m.GetCreated(), m.GetUpdated())
	}
	for _, m := range vh.accessKeys.list() {
		fmt.Fprintf(b, "  access-key %s of %q%s\n", m.GetName(), m.GetScope(), flags([]string{"send", "listen", "manage"}, m.GetSend(), m.GetListen(), m.GetManage()))
	}
}

// Described finds what is said of an object by its key. The row is shared.
func (vs *vhosts) Described(vhost, key string) (*logpb.Describe, bool) {
	if vh := vs.vhost(vhost); vh != nil {
		m := vh.descriptions.find(key)
		return m, m != nil
	}
	return nil, false
}

// Parts lists the queues that are parts of an exchange, the oldest first.
func (vs *vhosts) Parts(x *Exchange) []*Queue {
	if vh := vs.vhost(x.VHost); vh != nil {
		return vh.wholes.parts(endpoint{x.Name, true})
	}
	return nil
}

// QueueDescription is what is said of a queue; nil: nothing. The row is shared.
func (vs *vhosts) QueueDescription(vhost, queue string) *logpb.Describe {
	if vh := vs.vhost(vhost); vh != nil {
		return vh.descriptions.of(endpoint{queue, false})
	}
	return nil
}

// Descriptions lists what is said of the objects of a vhost, by key.
func (vs *vhosts) Descriptions(vhost string) []*logpb.Describe {
	if vh := vs.vhost(vhost); vh != nil {
		return vh.descriptions.list()
	}
	return nil
}

// AccessKey finds an access key; scope is the key of a description, or empty. The
// row is shared.
func (vs *vhosts) AccessKey(vhost, scope, name string) (*logpb.AccessKey, bool) {
	if vh := vs.vhost(vhost); vh != nil {
		m := vh.accessKeys.find(scope, name)
		return m, m != nil
	}
	return nil, false
}

// AccessKeys lists those of one scope, by name.
func (vs *vhosts) AccessKeys(vhost, scope string) []*logpb.AccessKey {
	if vh := vs.vhost(vhost); vh != nil {
		return vh.accessKeys.of(scope)
	}
	return nil
}

// performOnDescribed does one command about that.
func (d *draft) performOnDescribed(c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if d.FSMVersion() >= descriptionsSince {
		switch m := c.GetBody().(type) {
		case *logpb.CatalogCommand_Together:
			return d.together(m.Together)
		case *logpb.CatalogCommand_Describe:
			return d.describeObject(m.Describe)
		case *logpb.CatalogCommand_ChangeArguments:
			return d.changeArguments(m.ChangeArguments)
		case *logpb.CatalogCommand_PutAccessKey:
			return d.putAccessKey(m.PutAccessKey)
		case *logpb.CatalogCommand_DeleteAccessKey:
			return d.deleteAccessKey(m.DeleteAccessKey)
		}
	}
	return nil, refuse(fsm.Internal, "unknown catalog command")
}

// together performs all of several commands, or none. The answer has the lists of
// all of them; the queues declared are in Added.
//
// They are done on a draft of its own, which takes the place of d in the end, so that
// what is refused leaves no trace.
func (d *draft) together(m *logpb.Together) (*logpb.CatalogResult, error) {
	if d.within {
		return nil, refuse(fsm.Internal, "commands within commands within commands")
	}
	next := &draft{View: d.View, entry: d.entry}
	next.within = true
	sum := &logpb.CatalogResult{}
	for _, c := range m.GetCommands() {
		r, err := next.perform(c)
		if err != nil {
			return nil, err
		}
		if c.GetDeclareQueue() != nil && r.GetChanged() && !r.GetAdopted() {
			sum.Added = append(sum.Added, r.GetQueue())
		}
		sum.Changed, sum.Adopted = sum.Changed || r.GetChanged(), sum.Adopted || r.GetAdopted()
		sum.Added, sum.Deleted, sum.Configured = append(sum.Added, r.GetAdded()...), append(sum.Deleted, r.GetDeleted()...), append(sum.Configured, r.GetConfigured()...)
	}
	for _, list := range []*[]uint64{&sum.Added, &sum.Deleted, &sum.Configured} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	next.within = false
	*d = *next
	return sum, nil
}

// describeObject keeps what is said of an object, or replaces it. It performs
// Describe.
func (d *draft) describeObject(m *logpb.Describe) (*logpb.CatalogResult, error) {
	vh := d.vhost(m.GetVhost())
	if vh == nil {
		return nil, noVhost(m.GetVhost())
	}
	of, has := objectOf(m), vh.descriptions.find(m.GetKey())
	own := vh.descriptions.of(of)
	switch {
	case m.GetKey() == "" || len(m.GetKey()) > maxDescriptionKey || len(m.GetText()) > maxDescription:
		return nil, refuse(fsm.Precondition, "a description has a key of 1 to %d bytes and at most %d bytes", maxDescriptionKey, maxDescription)
	case !vh.there(of):
		return nil, refuse(fsm.NotFoundKind, "nothing called '%s' in vhost '%s' can be described", m.GetName(), m.GetVhost())
	case !m.GetChanges() && (has != nil || own != nil):
		return nil, refuse(fsm.Precondition, "'%s' in vhost '%s' is described already", m.GetKey(), m.GetVhost())
	case m.GetChanges() && (has == nil || has != own):
		return nil, refuse(fsm.NotFoundKind, "'%s' in vhost '%s' is not described", m.GetKey(), m.GetVhost())
	}
	row := &logpb.Describe{Vhost: m.GetVhost(), Name: m.GetName(), Exchange: m.GetExchange(), Key: m.GetKey(), Text: m.GetText(), Created: int64(d.clock), Updated: int64(d.clock)}
	if has != nil {
		row.Created = has.GetCreated()
	}
	d.open(m.GetVhost()).descriptions.put(row)
	return &logpb.CatalogResult{Changed: true}, nil
}

// changeArguments gives a queue those arguments of m that a policy can change, and an
// exchange all of them. It performs ChangeArguments.
func (d *draft) changeArguments(m *logpb.ChangeArguments) (*logpb.CatalogResult, error) {
	if d.vhost(m.GetVhost()) == nil {
		return nil, noVhost(m.GetVhost())
	}
	if m.GetExchange() {
		return d.changeExchange(m)
	}
	q, ok := d.Queue(m.GetVhost(), m.GetName())
	if !ok {
		return nil, noQueue(m.GetVhost(), m.GetName())
	}
	if err := q.checkOpen(); err != nil {
		return nil, err
	}
	old, r := d.match(q), &logpb.CatalogResult{}
	arguments := d.adoption(m.GetArguments(), old.arguments(q))
	if arguments == nil {
		return r, nil
	}
	if err := d.ValidateQueueArguments(q.VHost, q.Name, arguments); err != nil {
		return nil, err
	}
	d.adoptArguments(q, arguments, r)
	return r, nil
}

func (d *draft) changeExchange(m *logpb.ChangeArguments) (*logpb.CatalogResult, error) {
	x, ok := d.Exchange(m.GetVhost(), m.GetName())
	if !ok {
		return nil, noExchange(m.GetVhost(), m.GetName())
	}
	row := &logpb.DeclareExchange{
		Vhost: x.VHost, Name: x.Name, Type: x.declared.GetType(), Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal, Arguments: m.GetArguments(),
	}
	if strings.HasPrefix(x.Name, reserved) || x.Delays {
		return nil, refuse(fsm.AccessRefused, "the arguments of %s cannot be changed", x)
	}
	if err := checkExchangeArguments(noAccess, row); err != nil {
		return nil, err
	}
	if sameRow(row, x.declared) {
		return &logpb.CatalogResult{}, nil
	}
	vh, next := d.open(x.VHost), *x
	next.declared, next.Arguments = row, row.Arguments
	next.setEffective()
	vh.exchanges.put(&next)
	vh.exchanges.retime(&next, d.clock)
	return &logpb.CatalogResult{Changed: true}, nil
}

// putAccessKey gives out a key, or replaces one. It performs PutAccessKey.
func (d *draft) putAccessKey(m *logpb.AccessKey) (*logpb.CatalogResult, error) {
	vh := d.vhost(m.GetVhost())
	if vh == nil {
		return nil, noVhost(m.GetVhost())
	}
	if err := checkName("access key", m.GetName()); err != nil {
		return nil, err
	}
	had := vh.accessKeys.find(m.GetScope(), m.GetName())
	switch {
	case m.GetPrimary() == "" || len(m.GetPrimary()) > maxAccessKey || len(m.GetSecondary()) > maxAccessKey:
		return nil, refuse(fsm.Precondition, "an access key has 1 to %d bytes", maxAccessKey)
	case m.GetScope() != "" && vh.descriptions.find(m.GetScope()) == nil:
		return nil, refuse(fsm.NotFoundKind, "'%s' in vhost '%s' is not described", m.GetScope(), m.GetVhost())
	case had == nil && len(vh.accessKeys.of(m.GetScope())) >= MaxAccessKeys:
		return nil, refuse(fsm.Precondition, "there are %d access keys already", MaxAccessKeys)
	case had != nil && m.GetOnlyNew():
		return nil, refuse(fsm.Precondition, "there is an access key '%s' already", m.GetName())
	case had != nil && sameRow(had, m):
		return &logpb.CatalogResult{}, nil
	}
	d.open(m.GetVhost()).accessKeys.put(&logpb.AccessKey{
		Vhost: m.GetVhost(), Scope: m.GetScope(), Name: m.GetName(), Primary: m.GetPrimary(), Secondary: m.GetSecondary(),
		Send: m.GetSend(), Listen: m.GetListen(), Manage: m.GetManage(),
	})
	return &logpb.CatalogResult{Changed: true}, nil
}

// deleteAccessKey takes a key back. It performs DeleteAccessKey, of which the secrets
// do not count.
func (d *draft) deleteAccessKey(m *logpb.AccessKey) (*logpb.CatalogResult, error) {
	if vh := d.vhost(m.GetVhost()); vh == nil || vh.accessKeys.find(m.GetScope(), m.GetName()) == nil {
		return &logpb.CatalogResult{}, nil
	}
	d.open(m.GetVhost()).accessKeys.remove(m.GetScope(), m.GetName())
	return &logpb.CatalogResult{Changed: true}, nil
}

// forgetObject forgets what is said of an object that is gone, with its access keys,
// and removes its parts. Requires: vh is open. r names the queues that went.
func (d *draft) forgetObject(vh *vhost, e endpoint, r *logpb.CatalogResult) {
	if key := vh.descriptions.forget(e); key != "" {
		vh.accessKeys.forget(key)
	}
	for _, q := range vh.wholes.parts(e) {
		if vh.queues.At(q.Name) == q { // it has not gone with another part
			r.Deleted = append(r.Deleted, uint64(q.ID))
			d.removeQueue(q, r)
		}
	}
}

// checkPart refuses a part of what is not there, or of a part, and one that ends with
// something else.
func (d *draft) checkPart(m *logpb.DeclareQueue) error {
	of := partOf(m)
	if of.name == "" {
		return nil
	}
	where := resource(kindQueue, m.GetVhost(), m.GetName())
	if whole, ok := d.Queue(m.GetVhost(), of.name); !of.isExchange && ok && (whole.Exclusive || whole.Local) {
		return refuse(fsm.Precondition, "%s cannot be a part of %s, which is not replicated", where, whole)
	}
	switch {
	case !d.vhost(m.GetVhost()).there(of):
		return refuse(fsm.NotFoundKind, "%s cannot be a part of '%s', which is not there", where, of.name)
	case m.GetExclusive() || m.GetLocal():
		return refuse(fsm.Precondition, "%s cannot be a part, as it is not replicated", where)
	case !of.isExchange && of.name == m.GetName():
		return refuse(fsm.Precondition, "%s cannot be a part of itself", where)
	}
	return nil
}

// Whole names what q is a part of; empty: nothing.
func (q *Queue) Whole() (name string, exchange bool) { return q.PartOf.name, q.PartOf.isExchange }

func partOf(m *logpb.DeclareQueue) endpoint { return endpoint{m.GetPartOf(), m.GetPartOfExchange()} }
