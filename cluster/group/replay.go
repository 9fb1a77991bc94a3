package group

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/proto/logpb"
)

// Replayer reads a queue's history: the newest snapshot, if there is one, then each
// entry behind it.
type Replayer interface {
	Restore(state io.Reader) error
	// Apply must not keep anything of e.
	Apply(index, term uint64, e *logpb.Entry) error
}

// ErrNoHistory is returned by Replay for a local queue, which has no log.
var ErrNoHistory = errors.New("the queue has no log")

// ReplayStored is Replay for a node that has stopped. Not all of the entries need
// have been committed.
func ReplayStored(from *raftlog.Group, to Replayer) (Stored, error) {
	last, err := from.LastIndex()
	if err != nil {
		return Stored{}, err
	}
	s, err := replay(from, last, to)
	s.Doubt = from.Doubt()
	return s, errors.Join(err, s.failure())
}

func (s *Stored) failure() error {
	if s.Failed == "" {
		return nil
	}
	return errors.New(s.Failed)
}

func replay(from *raftlog.Group, last uint64, to Replayer) (Stored, error) {
	return walkTo(from, last, func(r io.Reader) error {
		state, err := raftlog.ReadState(r)
		if err != nil {
			return err
		}
		return to.Restore(state)
	}, func(l *raft.Log) error {
		var e logpb.Entry
		if err := e.UnmarshalVT(l.Data); err != nil {
			return err
		}
		return to.Apply(l.Index, l.Term, &e)
	})
}
