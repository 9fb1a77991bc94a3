package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

// AsideTime is how long a node keeps the data of a queue that its catalog does not know, and that it has not
// seen deleted: the queue may have been deleted while the node was down, or the catalog may be older than the data,
// because most nodes were put back from older images.
const AsideTime = 24 * time.Hour

// ErrAside is returned for a group whose number belongs to data that is put aside.
var ErrAside = errors.New("the number of the group holds data of another queue")

// PutAside closes a group that the catalog does not know, and returns for how long its data is kept; 0: it is
// dropped, because it has been kept long enough, there is none, or scarce says that there is no space for it.
func (h *Host) PutAside(id fsm.GroupID, scarce bool) (left time.Duration, err error) {
	h.shut(id)
	store, err := h.config.Store.Group(id)
	if err != nil {
		return 0, fmt.Errorf("open log of group %d: %w", id, err)
	}
	left, owner, err := h.aside(store)
	if err != nil {
		return 0, err
	}
	past, err := hasEntries(store)
	if err != nil {
		return 0, err
	}
	switch {
	case !past || scarce || left < 0:
		h.config.Logger.Warn("dropping data of a queue that is not in the catalog", "group", id, "queue", owner, "scarce", scarce)
		return 0, h.config.Store.DropGroup(id)
	case left == 0:
		left = AsideTime
		h.config.Logger.Warn("setting data aside of a queue that is not in the catalog", "group", id, "queue", owner, "for", left)
		return left, store.SetUint64([]byte(raftlog.AsideKey), uint64(h.config.Clock.Now()))
	}
	return left, nil
}

// hasEntries reports whether anything was ever stored in a group's log.
func hasEntries(store *raftlog.Group) (bool, error) {
	last, err := store.LastIndex()
	if err != nil || last > 0 {
		return true, err
	}
	list, err := store.Snapshots().List()
	return len(list) > 0, err
}

// aside returns for how long a group's data is still put aside, and to which queue it belongs. left is 0 if it is
// not put aside, and negative if the time is over.
func (h *Host) aside(store *raftlog.Group) (left time.Duration, owner string, err error) {
	name, err := store.Get([]byte(raftlog.OwnerKey))
	if err != nil {
		return 0, "", err
	}
	since, err := store.GetUint64([]byte(raftlog.AsideKey))
	if err != nil || since == 0 {
		return 0, string(name), err
	}
	if left = AsideTime - time.Duration(h.config.Clock.Now()-fsm.Time(since))*time.Millisecond; left == 0 {
		left--
	}
	return min(left, AsideTime), string(name), nil
}

// storeOf returns the store of a group that is about to be opened. What was put aside is the group's again if it
// belongs to the same queue.
func (h *Host) storeOf(spec *group.Spec) (*raftlog.Group, error) {
	store, err := h.config.Store.Group(spec.Group)
	if err != nil {
		return nil, fmt.Errorf("open log of group %d: %w", spec.Group, err)
	}
	left, was, err := h.aside(store)
	if err != nil {
		return nil, err
	}
	owner := spec.Owner()
	switch {
	case left == 0:
	case was == owner:
		h.config.Logger.Warn("data that was set aside is in use again", "group", spec.Group, "queue", owner)
		err = store.SetUint64([]byte(raftlog.AsideKey), 0)
	case left > 0:
		err = fmt.Errorf("%w %d, for another %v: %s", ErrAside, spec.Group, left.Round(time.Minute), was)
	default:
		if err = h.config.Store.DropGroup(spec.Group); err == nil {
			return h.storeOf(spec)
		}
	}
	if err != nil {
		return nil, err
	}
	return store, store.SetOwner(owner)
}
