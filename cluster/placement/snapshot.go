package placement

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// snapshotWait bounds how long a node may take for a snapshot.
const snapshotWait = 15 * time.Second

// Snapshots writes snapshots of queues on behalf of operators.
type Snapshots struct{ node *node }

func newSnapshots(n *node) *Snapshots {
	s := &Snapshots{n}
	n.Mesh.HandleCall(n.KindSnapshot, func(ctx context.Context, _ string, req []byte) ([]byte, error) {
		if len(req) != 4 {
			return nil, errors.New("the request for a snapshot names no group")
		}
		return nil, s.here(ctx, fsm.GroupID(binary.BigEndian.Uint32(req)))
	})
	return s
}

// Snapshot has every replica of a queue write a snapshot, and returns an error if one did not: the others may
// have written theirs.
func (s *Snapshots) Snapshot(ctx context.Context, q *catalog.Queue) error {
	if q.Local {
		return fsm.Refuse(fsm.Precondition, "the queue has no log on disk")
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotWait)
	defer cancel()
	members := memberNames(s.node.view(), q)
	failed := make([]error, len(members))
	var asked sync.WaitGroup
	for i, to := range members {
		asked.Go(func() {
			if err := s.at(ctx, to, q.Group); err != nil {
				failed[i] = fmt.Errorf("no snapshot on node '%s': %w", to, err)
			}
		})
	}
	asked.Wait()
	return errors.Join(failed...)
}

// at has one node write a snapshot.
func (s *Snapshots) at(ctx context.Context, to string, id fsm.GroupID) error {
	if to == s.node.Node {
		return s.here(ctx, id)
	}
	if !s.node.online(to) {
		return errors.New("the node is not up")
	}
	_, err := s.node.Mesh.Call(ctx, to, s.node.KindSnapshot, binary.BigEndian.AppendUint32(nil, uint32(id)))
	return err
}

func (s *Snapshots) here(ctx context.Context, id fsm.GroupID) error {
	g := s.node.Host.Group(id)
	if g == nil {
		return errors.New("it has no replica of the queue")
	}
	return g.Snapshot(ctx)
}
