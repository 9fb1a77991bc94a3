package group

// exchange is a group as the mesh asks it about snapshots.
type exchange struct{ g *Group }

// Offer implements peer.Snapshots.
func (e exchange) Offer(index uint64) (list []byte, done func(), newer uint64) {
	if at := e.g.log.SnapshotIndex(); at > index {
		return nil, nil, at
	}
	list, done = e.g.log.Offer(index)
	return list, done, 0
}

// Refused implements peer.Snapshots. A member whose snapshot is newer than the
// one that was sent cannot go back to that. It takes one that is as new as its
// own, which raft would write much later, or never: the group may need that
// member for everything that it would have to commit before.
func (e exchange) Refused(index uint64) {
	g := e.g
	g.host.spawn(func() {
		if !g.refreshing.CompareAndSwap(false, true) {
			return
		}
		defer g.refreshing.Store(false)
		if g.log.SnapshotIndex() < index && g.raft.AppliedIndex() >= index && g.snapshot() != nil {
			return // those who lag are looked after once more
		}
		g.nudge()
	})
}
