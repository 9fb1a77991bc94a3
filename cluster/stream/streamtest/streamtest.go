// Package streamtest plays the leader of a command stream, for tests of what sends by one.
package streamtest

import (
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
)

// Take collects what a stream has to send, as its route does.
func Take(s *stream.Stream) []group.Batch {
	var all []group.Batch
	for full := true; full; {
		b := stream.NewLoad()
		full = s.Take(&b)
		_ = b.Submit(func(b group.Batch) error {
			all = append(all, b)
			return nil
		})
	}
	return all
}

// Tell gives a stream answers of its leader.
func Tell(s *stream.Stream, answers ...group.Outcome) {
	leader, _, _ := s.Route().Leader()
	s.Answer(leader, answers)
}
