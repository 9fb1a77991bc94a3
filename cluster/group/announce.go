package group

import (
	"time"

	"github.com/hashicorp/raft"
)

const (
	noticePause = 2 * time.Millisecond // after a first notice that came too early
	noticeTries = 7                    // each pause is twice as long
)

// notice tells one follower what is committed. With nothing else to send, raft
// says it after CommitTimeout.
type notice struct {
	index, term uint64 // of the newest entry that is committed
	leads       uint64 // term in which this node tells it
	busy        bool
}

// tellFollowers tells all members of the group what has been committed.
func (k *Catalog) tellFollowers() {
	members := k.Configuration()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.appliedTerm != k.holders.term {
		return // it leads no more, and what it has is told by others
	}
	for _, m := range members {
		if m.Node == k.config.Node || !k.config.Mesh.Alive(m.Node) {
			continue
		}
		n := k.notices[m.Node]
		if n == nil {
			n = &notice{}
			k.notices[m.Node] = n
		}
		n.index, n.term, n.leads = k.applied, k.appliedTerm, k.holders.term
		if !n.busy {
			n.busy = true
			k.done.Go(func() { k.tell(m.Node, n) })
		}
	}
}

// tell sends notices to a follower until it has been told the newest.
func (k *Catalog) tell(node string, n *notice) {
	told, pause := uint64(0), noticePause
	for tries := 0; ; {
		k.mu.Lock()
		now := *n
		if n.busy = now.index > told && tries < noticeTries; !n.busy {
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		if k.sendNotice(node, &now) {
			told, tries, pause = now.index, 0, noticePause
			continue
		}
		select {
		case <-k.ending:
			tries = noticeTries
		case <-time.After(pause):
			tries, pause = tries+1, 2*pause
		}
	}
}

// sendNotice sends what raft itself would send later: no entries, the place of
// one that the follower should have, and that this one is committed. It returns
// false if the follower does not have it.
func (k *Catalog) sendNotice(node string, n *notice) bool {
	me := []byte(k.config.Node)
	var answer raft.AppendEntriesResponse
	err := k.config.Mesh.Transport(catalogGroup).AppendEntries(raft.ServerID(node), raft.ServerAddress(node), &raft.AppendEntriesRequest{
		RPCHeader:    raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: me, Addr: me},
		Term:         n.leads,
		PrevLogEntry: n.index, PrevLogTerm: n.term, LeaderCommitIndex: n.index,
	}, &answer)
	return err == nil && (answer.Success || answer.Term > n.leads)
}
