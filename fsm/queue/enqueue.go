package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueue takes one message in. With TTL 0 it is offered to consumers with
// credit, and expires here if none takes it.
func (m *Machine) enqueue(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Result {
	if cmd.GetSize() == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	h := m.messages.alloc()
	x := m.messages.mut(h)
	*x = message{
		seq: m.nextMessage, index: meta.Index, offset: meta.Offset, size: cmd.Size,
		priority: priority(cmd.PriorityPlusOne), hasExpiration: cmd.HasExpiration,
	}
	m.nextMessage++
	ttl, limited := m.ttl(cmd.TtlPlusOne)
	if limited {
		x.expireAt = m.deadline(ttl)
	}
	m.counts[0].Messages++
	m.counts[0].Bytes += uint64(x.size)
	m.setPlace(x, Ready)
	m.append(h)
	m.keepEntry(eff)
	if len(cmd.Deaths) > 0 {
		m.mutExtra(h).deaths = copyDeaths(cmd.Deaths)
	}
	m.counters.Enqueued++

	if !limited {
		return fsm.Result{}
	}
	if ttl == 0 {
		m.fresh = h
	}
	m.assign(eff)
	m.fresh = 0
	switch {
	case !m.messages.get(h).ready(): // handed out
	case ttl == 0:
		m.remove(h)
		m.die(h, logpb.Death_EXPIRED, eff)
	default:
		m.watch(h)
	}
	return fsm.Result{}
}

// ttl is the smaller of the message's and the queue's.
func (m *Machine) ttl(plusOne uint64) (d fsm.Millis, limited bool) {
	switch queue := m.config.TtlPlusOne; {
	case plusOne == 0:
		plusOne = queue
	case queue != 0:
		plusOne = min(plusOne, queue)
	}
	if plusOne == 0 {
		return 0, false
	}
	return millis(plusOne), true
}

func priority(plusOne uint32) uint8 {
	if plusOne == 0 {
		return defaultPriority
	}
	return uint8(min(plusOne-1, maxPriority))
}
