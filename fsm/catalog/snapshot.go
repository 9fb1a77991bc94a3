package catalog

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// Snapshot returns the view in its log form. Equal views have equal
// snapshots, byte for byte. It may run beside Apply. Records are shared with
// the view: nobody may change them.
//
// Every list is in a total order. What is derived is left out: tables, inbound
// bindings, indexes, matches but for their revision, effective settings,
// compiled patterns. It costs O(n log n), and does not encode: that can wait
// until the snapshot is written.
func (v *View) Snapshot() (s *logpb.CatalogSnapshot) {
	for part := range v.SnapshotParts() {
		if s == nil {
			s = part
		}
		s.Queues = append(s.Queues, part.Queues...)
	}
	return s
}

// snapshotRun is how many queues are in a part of a snapshot.
const snapshotRun = 4096

// SnapshotParts returns Snapshot in parts, none of which is large whatever the number of queues, and the first of which
// has none: decoded one behind the other, their encodings are the encoding of the whole. So whoever writes a state needs
// no memory for another one.
func (v *View) SnapshotParts() iter.Seq[*logpb.CatalogSnapshot] {
	return func(yield func(*logpb.CatalogSnapshot) bool) {
		s := &logpb.CatalogSnapshot{
			Version: snapshotVersion, Index: v.index, Clock: int64(v.clock), Initialized: v.initialized,
			Vhosts: v.VHosts(),
		}
		v.clusterSettings.save(s)
		v.nodes.save(s)
		v.joinTokens.save(s)
		v.lockKey.save(s)
		v.globals.save(s)
		v.users.save(s)
		v.limits.save(s)
		v.queueIndex.save(s)
		v.proposals.save(s)
		for _, p := range v.Permissions() {
			s.Permissions = append(s.Permissions, p.row())
		}
		for _, p := range v.TopicPermissions() {
			s.TopicPermissions = append(s.TopicPermissions, p.row)
		}
		for _, row := range s.Vhosts {
			v.vhost(row.GetName()).save(s)
		}
		if !yield(s) {
			return
		}
		for run := range slices.Chunk(v.Queues(), snapshotRun) {
			part := &logpb.CatalogSnapshot{}
			for _, q := range run {
				row := &logpb.QueueState{Declared: q.declaration(), Id: uint64(q.ID), Group: uint32(q.Group), Revision: v.match(q).revision, Adopted: v.match(q).adopted.row()}
				v.placements.save(q, row)
				part.Queues = append(part.Queues, row)
			}
			if !yield(part) {
				return
			}
		}
	}
}

// Hash is a digest of a state.
type Hash [sha256.Size]byte

// Hash digests the canonical encoding of the whole state. Replicas at the same
// index have the same Hash, whatever order their maps have, and whichever
// release of the program they run: the texts of answers that are kept are left
// out. It costs as much as a snapshot that is written.
func (v *View) Hash() Hash {
	s := v.Snapshot()
	if v.FSMVersion() >= textsApart {
		s.Proposers = withoutTexts(s.Proposers)
	}
	return sha256.Sum256(encoded(s))
}

// save is the section of a vhost in a snapshot: its policies, exchanges and
// bindings. Permissions and queues are in the order of the whole catalog.
func (vh *vhost) save(to *logpb.CatalogSnapshot) {
	for _, operator := range []bool{false, true} {
		for _, p := range vh.policies.list(operator) {
			to.Policies = append(to.Policies, p.row)
		}
	}
	for _, x := range vh.exchanges.list() {
		to.Exchanges = append(to.Exchanges, x.declared)
		for _, b := range sorted(x.bindings, compareBindings) {
			to.Bindings = append(to.Bindings, b.bound)
		}
	}
	vh.exchanges.saveUse(to)
	vh.saveDescribed(to)
}

// Restore returns the catalog that s was taken from. Parts of s stay in it:
// nobody may change it from now on. An error means that s is damaged.
//
// Restore(v.Snapshot()) is a catalog with the same Snapshot, that gives the
// same answers to all further entries. It checks all invariants before it
// returns, so that a damaged snapshot is not taken over. Names and values are
// not validated again: records may be from a log of older rules.
func Restore(s *logpb.CatalogSnapshot) (*Catalog, error) {
	if s.GetVersion() != snapshotVersion {
		return nil, fmt.Errorf("catalog snapshot has version %d, but this program supports only version %d", s.GetVersion(), snapshotVersion)
	}
	d := draft{View: View{index: s.GetIndex(), clock: fsm.Time(s.GetClock()), initialized: s.GetInitialized()}}
	if err := d.restore(s); err != nil {
		return nil, fmt.Errorf("catalog snapshot at %d: %w", s.GetIndex(), err)
	}
	v := d.View
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("catalog snapshot at %d: %w", s.GetIndex(), err)
	}
	return &Catalog{view: &v}, nil
}

// restore takes up the sections of a snapshot, each after those that it needs:
// policies come before what they match, queues before the bindings to them.
//
// Exchanges match policies when they are added, queues too, and a store finds
// its exchange; last uses come at the end, when it is known which exchanges are
// idle. The draft is not bound to an entry, so no ids and no groups are given
// here.
func (d *draft) restore(s *logpb.CatalogSnapshot) error {
	d.clusterSettings.restore(s)
	d.nodes.restore(s)
	d.joinTokens.restore(s)
	d.lockKey.restore(s)
	d.globals.restore(s)
	d.users.restore(s)
	d.limits.restore(s)
	d.queueIndex.restore(s)
	d.proposals.restore(s)
	for _, row := range s.GetVhosts() {
		d.own(&vhost{row: row})
	}
	for _, restore := range []func() error{
		func() error {
			return restoreRows(d, s.GetPermissions(), func(vh *vhost, p *logpb.PutPermission) error { vh.rights.put(newPermission(p)); return nil })
		},
		func() error {
			return restoreRows(d, s.GetTopicPermissions(), func(vh *vhost, p *logpb.PutTopicPermission) error {
				vh.rights.putTopic(newTopicPermission(p))
				return nil
			})
		},
		func() error {
			return restoreRows(d, s.GetPolicies(), func(vh *vhost, p *logpb.PutPolicy) error { vh.policies.put(newPolicy(p)); return nil })
		},
		func() error {
			return restoreRows(d, s.GetExchanges(), func(vh *vhost, x *logpb.DeclareExchange) error { vh.addExchange(x); return nil })
		},
		func() error { return d.restoreQueues(s.GetQueues()) },
		func() error { return restoreRows(d, s.GetBindings(), d.restoreBinding) },
		func() error { return d.restoreUse(s.GetIdle()) },
		func() error {
			return restoreRows(d, s.GetDescriptions(), func(vh *vhost, m *logpb.Describe) error { vh.descriptions.put(m); return nil })
		},
		func() error {
			return restoreRows(d, s.GetAccessKeys(), func(vh *vhost, m *logpb.AccessKey) error { vh.accessKeys.put(m); return nil })
		},
	} {
		if err := restore(); err != nil {
			return err
		}
	}
	return nil
}

// restoreRows gives each row to its vhost, which must be there.
func restoreRows[T interface{ GetVhost() string }](d *draft, rows []T, add func(vh *vhost, row T) error) error {
	for _, row := range rows {
		vh := d.opened[row.GetVhost()]
		if vh == nil {
			return fmt.Errorf("no vhost %q", row.GetVhost())
		}
		if err := add(vh, row); err != nil {
			return err
		}
	}
	return nil
}

// restoreQueues adds queues with the ids, groups, revisions and members they
// had, all at once: one by one they would take ten times as long. Ids or groups
// that come twice are left for Check to find.
func (d *draft) restoreQueues(rows []*logpb.QueueState) error {
	all, of := make([]*Queue, 0, len(rows)), map[string][]*Queue{}
	for _, row := range rows {
		declared := row.GetDeclared()
		vh := d.opened[declared.GetVhost()]
		if vh == nil {
			return fmt.Errorf("no vhost %q", declared.GetVhost())
		}
		q := newQueue(declared, fsm.QueueID(row.GetId()), fsm.GroupID(row.GetGroup()))
		d.share(q)
		vh.noteQueue(q, policyMatch{revision: row.GetRevision(), adopted: adoptedFrom(row.GetAdopted())})
		all, of[q.VHost] = append(all, q), append(of[q.VHost], q)
	}
	d.queueIndex.addAll(all)
	d.placements.addAll(all)
	for i, q := range all {
		d.placements.restore(q, rows[i])
	}
	for name, queues := range of { // det: vhosts have nothing to do with each other
		vh := d.opened[name]
		if vh.queues = route.MapOf(queues, func(q *Queue) string { return q.Name }); vh.queues.Len() != len(queues) {
			return fmt.Errorf("of %d queues in vhost %q two have the same name", len(queues), name)
		}
	}
	return nil
}

// restoreBinding adds a binding, whose ends must be there. One that comes twice
// is an error; so is one that checkBinding refuses.
func (d *draft) restoreBinding(vh *vhost, b *logpb.Bind) error {
	if exists, err := d.checkBind(b); err != nil || exists {
		return fmt.Errorf("binding of %q to %q in %q: %v", b.GetSource(), b.GetDestination(), b.GetVhost(), err)
	}
	vh.addBinding(b)
	return nil
}

// restoreUse gives idle exchanges their last use. One without a row gets the
// clock of the snapshot.
func (d *draft) restoreUse(rows []*logpb.ExchangeActivity) error {
	for _, vh := range d.opened { // det: vhosts have nothing to do with each other
		for x := range vh.exchanges.values() {
			vh.exchanges.retime(x, d.clock)
		}
	}
	return restoreRows(d, rows, func(vh *vhost, row *logpb.ExchangeActivity) error { return vh.exchanges.restoreUse(row) })
}

// String returns the view as stable text, one line per record.
func (v *View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "index %d clock %d next-node %d next-group %d initialized %v\n", v.index, v.clock, v.nextNumber(), v.firstGroup(), v.initialized)
	v.nodes.describe(&b)
	v.clusterSettings.describe(&b)
	v.joinTokens.describe(&b)
	v.lockKey.describe(&b)
	v.globals.describe(&b)
	v.users.describe(&b)
	v.proposals.describe(&b)
	for _, p := range v.Permissions() {
		fmt.Fprintf(&b, "permission %s in %s configure=%q write=%q read=%q\n", p.User, p.VHost, p.Configure, p.Write, p.Read)
	}
	for _, p := range v.TopicPermissions() {
		fmt.Fprintf(&b, "topic-permission %s in %s at %q write=%q read=%q\n", p.User, p.VHost, p.Exchange, p.Write, p.Read)
	}
	v.limits.describe(&b)
	for _, row := range v.VHosts() {
		v.vhost(row.GetName()).describe(&b, &v.placements)
	}
	return b.String()
}

// describe writes a vhost and what is in it.
func (vh *vhost) describe(b *strings.Builder, all *placements) {
	fmt.Fprintf(b, "vhost %s description=%q tags=%v", vh.row.Name, vh.row.Description, vh.row.Tags)
	if kind := vh.row.GetDefaultQueueType(); kind != "" {
		fmt.Fprintf(b, " default-queue-type=%s", kind)
	}
	if vh.row.Protected {
		b.WriteString(" protected")
	}
	if mode := RedeclareOf(vh.row); mode != RedeclareModes[0] {
		b.WriteString(" redeclare=" + mode)
	}
	b.WriteByte('\n')
	for _, p := range append(slices.Clone(vh.policies.list(false)), vh.policies.list(true)...) {
		b.WriteString("  " + p.line() + "\n")
	}
	for _, x := range vh.exchanges.list() {
		b.WriteString("  " + x.line() + vh.exchanges.useText(x) + "\n")
	}
	for _, q := range sorted(vh.queues, func(a, b *Queue) int { return cmp.Compare(a.Name, b.Name) }) {
		b.WriteString("  " + q.line() + all.line(q) + vh.policies.of(q).line() + "\n")
	}
	for _, x := range vh.exchanges.list() {
		for _, bound := range sorted(x.bindings, compareBindings) {
			b.WriteString("  " + bound.line() + "\n")
		}
	}
	vh.describeText(b)
}

// versionsText shows what a node has announced, if that is not version 1.
func versionsText(n *logpb.NodeState) string {
	if s := fsm.Announced(n); s != (fsm.Versions{Oldest: 1, Newest: 1}) {
		return fmt.Sprintf(" versions=%q", s)
	}
	return ""
}

func identityText(n *logpb.NodeState) string {
	if len(n.GetIdentity()) == 0 {
		return ""
	}
	return fmt.Sprintf(" identity=%q", n.GetIdentity())
}

func (xs *exchanges) useText(x *Exchange) string {
	if x.idle == 0 {
		return ""
	}
	last, _ := xs.lastUsed(x.Name)
	return fmt.Sprintf(" idle=%d active=%d", x.idle, last)
}

// flags joins the names of those flags that are set, each after a blank.
func flags(names []string, set ...bool) string {
	text := ""
	for i, name := range names {
		if set[i] {
			text += " " + name
		}
	}
	return text
}

func (x *Exchange) line() string {
	text := fmt.Sprintf("exchange %s %s", x.Name, x.DeclaredType())
	text += flags([]string{"durable", "auto-delete", "internal"}, x.Durable, x.AutoDelete, x.Internal)
	if len(x.Arguments.GetFields()) > 0 {
		text += " " + renderTable(x.Arguments)
	}
	return text + x.match.line()
}

func (p *Policy) line() string {
	kind := "policy"
	if p.Operator {
		kind = "operator-policy"
	}
	dialect := ""
	if p.row.GetDialect() != dialectRE2 {
		dialect = fmt.Sprintf("dialect=%d ", p.row.GetDialect())
	}
	return fmt.Sprintf("%s %s pattern=%q apply-to=%s priority=%d %s%s", kind, p.Name, p.Pattern, p.ApplyTo, p.Priority, dialect, renderTable(p.Definition))
}

// line follows that of a queue or an exchange. It is empty without policies.
func (f policyMatch) line() string {
	text := ""
	if f.policy != nil {
		text += " policy=" + f.policy.Name
	}
	if f.operator != nil {
		text += " operator-policy=" + f.operator.Name
	}
	if f.revision != 0 {
		text += fmt.Sprintf(" revision=%d", f.revision)
	}
	return text + f.adopted.line()
}

func (q *Queue) line() string {
	text := fmt.Sprintf("queue %s id=%d.%d group=%d members=%v", q.Name, q.ID>>16, q.ID&(maxCommands-1), q.Group, q.declaredMembers)
	text += flags([]string{"durable", "exclusive", "auto-delete", "local", "classic"}, q.Durable, q.Exclusive, q.AutoDelete, q.Local, q.Classic)
	if q.Exclusive {
		text += fmt.Sprintf(" owner=%d/%d/%d", q.Owner.Node, q.Owner.Boot, q.Owner.Connection)
	}
	if q.PartOf.name != "" {
		text += " part-of=" + q.PartOf.name + flags([]string{"exchange"}, q.PartOf.isExchange)
	}
	if len(q.Arguments.GetFields()) > 0 {
		text += " " + renderTable(q.Arguments)
	}
	return text
}

func (b *Binding) line() string {
	kind := kindQueue
	if b.ToExchange {
		kind = kindExchange
	}
	text := fmt.Sprintf("binding %s -> %s %s key=%q", b.Source, kind, b.Destination, b.RoutingKey)
	if len(b.Arguments.GetFields()) > 0 {
		text += " " + renderTable(b.Arguments)
	}
	return text
}

// Check returns the first broken invariant it finds: every part checks what it
// keeps true, and View compares what two of them hold.
//
// It walks over the whole state, so Restore calls it and Apply does not.
func (v *View) Check() error {
	for _, check := range []func() error{
		func() error { return v.nodes.check(v.index) },
		v.clusterSettings.check,
		func() error { return v.nodes.checkVersions(&v.clusterSettings) },
		func() error { return v.limits.check(v.there) },
		v.joinTokens.check,
		v.lockKey.check,
		v.globals.check,
		func() error { return v.proposals.check(&v.nodes) },
		v.checkVHosts,
		func() error { return v.placements.check(&v.queueIndex) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkVHosts checks the vhosts, and compares their queues with those of the
// index and of the placements.
func (v *View) checkVHosts() error {
	queues, exclusive := 0, 0
	for name, vh := range v.vhosts.byName() {
		if vh.row.GetName() != name {
			return fmt.Errorf("vhost %q stands under %q", vh.row.GetName(), name)
		}
		if err := vh.check(v.clock, &v.users); err != nil {
			return err
		}
		for q := range vh.queues.Values() {
			if err := v.queueIndex.checkQueue(q, v.index); err != nil {
				return err
			}
			if err := v.placements.checkQueue(q, &v.nodes); err != nil {
				return err
			}
			queues++
			if q.Exclusive {
				exclusive++
			}
		}
	}
	return v.queueIndex.check(queues, exclusive)
}
