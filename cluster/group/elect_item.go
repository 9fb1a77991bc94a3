package group

import (
	"encoding/binary"

	"github.com/quorate/quorate/fsm"
)

// item is the entry of one group in an exchange of positions.
type item struct {
	kind     byte
	group    fsm.GroupID
	term     uint64 // raft's current term
	position logPosition
	barred   bool // the sender must not lead
	learner  bool // the sender neither leads nor votes
}

const (
	itemAsk        = 1 // my log ends here; where does yours?
	itemPosition   = 2
	itemLed        = 3    // the group has a leader that I can reach
	itemOutOfReach = 4    // I cannot reach the leader that you have reported
	itemOffer      = 5    // I reach all members and would lead; my log ends here
	itemWant       = 6    // somebody waits for a leader, perhaps at a node that is no member
	itemWaits      = 7    // I am about to stand, at the latest when my node has got other elections over
	itemBarred     = 0x80 // added to the kind
	itemLearner    = 0x40 // likewise
	itemSize       = 1 + 4 + 8 + 8 + 8
)

// sound reports whether a log as described by the item is possible.
func (it item) sound() bool {
	const limit = 1 << 62
	return it.term < limit && it.position.term < limit && it.position.index < limit
}

func appendItem(dst []byte, it item) []byte {
	kind := it.kind
	if it.barred {
		kind |= itemBarred
	}
	if it.learner {
		kind |= itemLearner
	}
	dst = append(dst, kind)
	dst = binary.BigEndian.AppendUint32(dst, uint32(it.group))
	dst = binary.BigEndian.AppendUint64(dst, it.term)
	dst = binary.BigEndian.AppendUint64(dst, it.position.term)
	return binary.BigEndian.AppendUint64(dst, it.position.index)
}

func parseItem(b []byte) item {
	return item{
		kind: b[0] &^ (itemBarred | itemLearner), barred: b[0]&itemBarred != 0, learner: b[0]&itemLearner != 0, group: fsm.GroupID(binary.BigEndian.Uint32(b[1:])),
		term:     binary.BigEndian.Uint64(b[5:]),
		position: logPosition{binary.BigEndian.Uint64(b[13:]), binary.BigEndian.Uint64(b[21:])},
	}
}
