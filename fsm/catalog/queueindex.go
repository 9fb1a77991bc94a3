package catalog

import (
	"cmp"
	"fmt"
	"iter"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// queueIndex finds the queues of all vhosts, in three more orders than their
// vhosts know them.
//
// Invariants:
//
//	byID and byGroup have all queues; no two have the same id or group
//	byOwner[o] has exactly the exclusive queues of o, and is not empty
//	1 ≤ group of every queue
//
// It is derived from the queues of the vhosts, but for nextGroup, which is all
// that its section of a snapshot holds: it has also counted the queues that are
// gone.
type queueIndex struct {
	byID    route.Map[fsm.QueueID, *Queue]
	byGroup route.Map[fsm.GroupID, *Queue]
	// byOwner: only of exclusive queues
	byOwner   route.Map[Owner, route.Map[fsm.QueueID, *Queue]]
	nextGroup uint32 // number to try next; 0: 1
}

// QueueByID finds a queue by its id.
func (qs *queueIndex) QueueByID(id fsm.QueueID) (*Queue, bool) { return qs.byID.Get(id) }

// QueueByGroup finds a queue by its group. A message that names only a group
// may be from an earlier owner of the number.
func (qs *queueIndex) QueueByGroup(g fsm.GroupID) (*Queue, bool) { return qs.byGroup.Get(g) }

// QueueCount is the number of queues of all vhosts.
func (qs *queueIndex) QueueCount() int { return qs.byID.Len() }

// EachQueue walks over all queues in no particular order.
func (qs *queueIndex) EachQueue() iter.Seq[*Queue] { return qs.byID.Values() }

// Queues returns all queues by id, that is, the oldest first. It sorts: O(n log
// n). What Apply does to several queues follows this order, so that it and the
// answer are the same on every replica.
func (qs *queueIndex) Queues() []*Queue {
	return sorted(qs.byID, func(a, b *Queue) int { return cmp.Compare(a.ID, b.ID) })
}

// Owned returns the exclusive queues of a connection by id. It costs only what
// the connection has.
func (qs *queueIndex) Owned(o Owner) []*Queue {
	return sorted(qs.byOwner.At(o), func(a, b *Queue) int { return cmp.Compare(a.ID, b.ID) })
}

// firstGroup is the number to try next for a group.
func (qs *queueIndex) firstGroup() uint32 { return max(qs.nextGroup, 1) }

// newGroup takes the group number for the next queue. Numbers are used in turn;
// when all 2^32-1 have been, the search begins again at 1 and leaves out those
// in use. Requires: fewer than 2^32-1 queues, or it would never end. A number
// that is given back is not reused before all others were, so that late
// messages for a deleted group seldom meet another one.
func (qs *queueIndex) newGroup() fsm.GroupID {
	for g := fsm.GroupID(qs.nextGroup); ; g++ {
		if _, used := qs.byGroup.Get(g); g != 0 && !used {
			qs.nextGroup = uint32(g) + 1
			return g
		}
	}
}

// add adds a queue. Requires: neither its id nor its group is in the index. Its
// vhost must get the same record.
func (qs *queueIndex) add(q *Queue) {
	qs.byID = qs.byID.With(q.ID, q)
	qs.byGroup = qs.byGroup.With(q.Group, q)
	if q.Exclusive {
		qs.byOwner = qs.byOwner.With(q.Owner, qs.byOwner.At(q.Owner).With(q.ID, q))
	}
}

// remove removes a queue. Requires: q is the record in the index. Its id is
// never used again, its group may be.
func (qs *queueIndex) remove(q *Queue) {
	qs.byID = qs.byID.Without(q.ID)
	qs.byGroup = qs.byGroup.Without(q.Group)
	if !q.Exclusive {
		return
	}
	if left := qs.byOwner.At(q.Owner).Without(q.ID); left.Len() > 0 {
		qs.byOwner = qs.byOwner.With(q.Owner, left)
	} else {
		qs.byOwner = qs.byOwner.Without(q.Owner)
	}
}

// save is the section of the index in a snapshot, and restore its inverse. The
// queues follow one by one, see add.
func (qs *queueIndex) save(to *logpb.CatalogSnapshot)      { to.NextGroup = qs.firstGroup() }
func (qs *queueIndex) restore(from *logpb.CatalogSnapshot) { qs.nextGroup = from.GetNextGroup() }

// checkQueue looks at one queue, at the index of the last entry.
func (qs *queueIndex) checkQueue(q *Queue, index uint64) error {
	byID, _ := qs.QueueByID(q.ID)
	byGroup, _ := qs.QueueByGroup(q.Group)
	switch {
	case byID != q || byGroup != q:
		return fmt.Errorf("%s is not found by id %d or by group %d", q, q.ID, q.Group)
	case q.Group == 0 || uint64(q.ID)>>16 > index:
		return fmt.Errorf("%s has id %d and group %d at index %d", q, q.ID, q.Group, index)
	case q.Exclusive && (qs.byOwner.At(q.Owner).At(q.ID) != q || q.Durable):
		return fmt.Errorf("exclusive %s is durable, or not found by its owner", q)
	case !q.Exclusive && q.Owner != Owner{}:
		return fmt.Errorf("%s is not exclusive and has an owner", q)
	}
	return nil
}

// check gets how many queues the vhosts have, and how many of them are exclusive.
func (qs *queueIndex) check(queues, exclusive int) error {
	for _, list := range qs.byOwner.All() {
		exclusive -= list.Len()
		if list.Len() == 0 {
			return fmt.Errorf("an owner without queues")
		}
	}
	if queues != qs.byID.Len() || queues != qs.byGroup.Len() || exclusive != 0 {
		return fmt.Errorf("%d queues, %d by id, %d by group, %d exclusive ones not with their owner", queues, qs.byID.Len(), qs.byGroup.Len(), exclusive)
	}
	return nil
}
