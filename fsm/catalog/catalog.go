package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// snapshotVersion is the version of the encoding of snapshots as such. What
	// a later version of the machine adds are fields, see View.FSMVersion.
	snapshotVersion = 1
	// maxCommands is the number of commands of one entry that are performed;
	// see entry. It is also how many ids an entry has, as the position takes 16
	// bits of an id.
	maxCommands = 1 << 16
)

// Catalog is the machine of the catalog's log. One goroutine at a time uses
// it; Views may be used by all. The zero Catalog is empty.
type Catalog struct {
	// view: nil: the empty catalog. Replaced by Apply as a whole.
	view *View
	// repeated: the last entry was not performed, see Repeated.
	repeated bool
}

// Fork returns a catalog that begins as v. What is applied to it changes nothing
// else.
func (v *View) Fork() *Catalog { return &Catalog{view: v} }

// View returns the catalog as it is after the last entry. It must not run
// beside Apply; the View returned may be used beside it.
func (c *Catalog) View() *View {
	if c.view == nil {
		return &View{}
	}
	return c.view
}

// Apply performs the entry at index and returns one answer per command. A
// command that is refused changes nothing; the others of its entry go on.
// Parts of e stay in the catalog: nobody may change it from now on.
//
// It panics if the entry has a version that the cluster has not, as going on
// would make this replica differ, or if index does not grow.
//
// Requires: index > View().Index(), and 1 ≤ e.Version ≤ FSMVersion before the
// entry; the leader checks the version in admit, and each replica before it
// applies. Ensures: Index() = index, also if every command is refused; Clock()
// is the larger of what it was and e.Now; the View from before is unchanged.
//
// An entry whose proposal has been performed changes nothing else. It is answered as it was then;
// one that nobody waits for is refused.
//
// The commands see what those before them in the entry have done. The outcome
// depends on the View and e alone: no clock, no random number, no order of a
// map.
func (c *Catalog) Apply(index uint64, e *logpb.CatalogEntry) []*logpb.CatalogResult {
	d := draft{View: *c.View(), entry: entry{base: index << 16}}
	if v := e.GetVersion(); v == 0 || v > d.FSMVersion() {
		panic(fmt.Sprintf("catalog: entry %d has version %d, but the cluster has %d", index, v, d.FSMVersion()))
	}
	if last := d.index; index <= last {
		panic(fmt.Sprintf("catalog: entry %d after entry %d", index, last))
	}
	d.index = index
	d.clock = max(d.clock, fsm.Time(e.GetNow()))
	results, repeated := d.proposals.begin(e.GetProposal(), &d.nodes, len(e.GetCommands()))
	if c.repeated = repeated; !repeated {
		results = d.performAll(e)
	}
	v := d.View
	c.view = &v
	return results
}

// Repeated reports whether the last entry was a proposal that came once more, or too late, so that
// its answers say nothing of what has changed.
func (c *Catalog) Repeated() bool { return c.repeated }

// performAll does the commands of an entry.
func (d *draft) performAll(e *logpb.CatalogEntry) []*logpb.CatalogResult {
	results := make([]*logpb.CatalogResult, len(e.GetCommands()))
	for i, command := range e.GetCommands() {
		d.position = i
		r, err := d.perform(command)
		if err != nil {
			r = Refuse(err)
		}
		results[i] = r
	}
	d.proposals.performed(e.GetProposal(), &d.nodes, results)
	return results
}

// Refuse returns err, which is a refusal, as an answer. Requires: err is a
// *fsm.Refusal. Any other error here would be one that differs between
// replicas, hence the panic.
func Refuse(err error) *logpb.CatalogResult {
	r := err.(*fsm.Refusal)
	return &logpb.CatalogResult{Refusal: uint32(r.Kind), Text: r.Text}
}

// Refused is the inverse of Refuse: nil if the answer is no refusal.
func Refused(r *logpb.CatalogResult) error {
	if r.GetRefusal() == 0 {
		return nil
	}
	return &fsm.Refusal{Kind: fsm.Kind(r.GetRefusal()), Text: r.GetText()}
}

// Hash digests the state, see View.Hash.
func (c *Catalog) Hash() Hash { return c.View().Hash() }

// Snapshot returns the state in its log form. See View.Snapshot.
func (c *Catalog) Snapshot() *logpb.CatalogSnapshot { return c.View().Snapshot() }

// String returns the state as stable text.
func (c *Catalog) String() string { return c.View().String() }

// Check returns the first broken invariant it finds. It walks over the whole
// state.
func (c *Catalog) Check() error { return c.View().Check() }
