package queue

import (
	"bytes"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// annotationsOf returns what a settlement adds to messages that it does not end. It is a
// copy: nothing of a command is kept.
func annotationsOf(s *shared, cmd *logpb.Settle) []*logpb.Annotation {
	if !s.since(3) || cmd.Outcome == logpb.Settle_ACK || cmd.Outcome == logpb.Settle_DISCARD {
		return nil
	}
	return copied(cmd.GetAnnotations())
}

// annotationsAt returns a copy of what a message has that comes into a queue.
func annotationsAt(s *shared, cmd *logpb.Enqueue) []*logpb.Annotation {
	if !s.since(3) {
		return nil
	}
	return copied(cmd.GetAnnotations())
}

// copied returns a copy of annotations, of which as many as a message may have.
func copied(list []*logpb.Annotation) (all []*logpb.Annotation) {
	for _, a := range withAnnotations(nil, list) {
		all = append(all, &logpb.Annotation{Key: bytes.Clone(a.GetKey()), Value: bytes.Clone(a.GetValue())})
	}
	return all
}

// withAnnotations returns what a message has after more was added to what it had, which is
// not changed: the newest first, and of these those that fit.
func withAnnotations(had, more []*logpb.Annotation) (all []*logpb.Annotation) {
	left := fsm.MaxAnnotationBytes
	for _, list := range [...][]*logpb.Annotation{more, had} {
		for _, a := range list {
			size := len(a.GetKey()) + len(a.GetValue())
			is := func(o *logpb.Annotation) bool { return bytes.Equal(o.GetKey(), a.GetKey()) }
			if len(all) == fsm.MaxAnnotations {
				return all
			}
			if size <= left && !slices.ContainsFunc(all, is) {
				all = append(all, a)
				left -= size
			}
		}
	}
	return all
}

// annotate adds what a receiver says to messages that it has settled, and that go on.
func annotate(taken []checkout, more []*logpb.Annotation, ms *messages) {
	if len(more) == 0 {
		return
	}
	for i := range taken {
		e := ms.editExtra(taken[i].handle)
		if e.annotations == nil {
			e.annotations = more // which many messages may share
		} else {
			e.annotations = withAnnotations(e.annotations, more)
		}
		ms.scratch.steps++
	}
}
