package peer

import (
	"context"
	"sync/atomic"
	"time"
)

// Snapshots share disk, links and processors with clients' messages, which come
// first: a snapshot can take longer.
const (
	// smallSnapshot is what may go beside a large one.
	smallSnapshot = 1 << 20
	smallAtATime  = 8
	// snapshotDutyCycle is which part of the time an install works: the rest
	// belongs to others. It is the sender that pauses, by the time that its own
	// work took: what is slow because others are busy pauses longer.
	snapshotDutyCycle = 0.4
	// leastPause is what is worth a pause: a shorter one would be longer.
	leastPause = 5 * time.Millisecond
)

// snapshotSlots bounds the snapshots that a node sends, or receives, at a time:
// one that is large, and a few small ones.
type snapshotSlots struct{ large, small chan struct{} }

func (s *snapshotSlots) init() {
	s.large, s.small = make(chan struct{}, 1), make(chan struct{}, smallAtATime)
}

// take waits until a snapshot of this size may go, or for stop.
func (s *snapshotSlots) take(size int64, stop <-chan struct{}) (free func(), err error) {
	slots := s.large
	if size <= smallSnapshot {
		slots = s.small
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-stop:
		return nil, errAbandoned
	}
}

// throttle keeps an install to its duty cycle.
type throttle struct{ owed time.Duration }

// worked pauses after a piece that took so long.
func (p *throttle) worked(ctx context.Context, took time.Duration) error {
	p.owed += time.Duration(float64(took) * (1 - snapshotDutyCycle) / snapshotDutyCycle)
	if p.owed < leastPause {
		return nil
	}
	began := time.Now()
	pause := time.NewTimer(p.owed)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.owed -= time.Since(began) // a late timer is credit for the next piece
	return nil
}

// snapshotTraffic is what goes on about snapshots between this node and others.
type snapshotTraffic struct {
	sending, receiving                 snapshotSlots
	sent, sentBytes, leftOut, received atomic.Uint64 // as in SnapshotCounts
}

func (s *snapshotTraffic) init() {
	s.sending.init()
	s.receiving.init()
}

// SnapshotCounts counts snapshots since the mesh was made.
type SnapshotCounts struct {
	Sent      uint64 // to other nodes, or begun
	SentBytes uint64
	LeftOut   uint64 // bytes that the receivers had
	Received  uint64 // from other nodes, or begun
}

// SnapshotCounts returns the counts of snapshots.
func (m *Mesh) SnapshotCounts() SnapshotCounts {
	s := &m.snapshots
	return SnapshotCounts{s.sent.Load(), s.sentBytes.Load(), s.leftOut.Load(), s.received.Load()}
}
