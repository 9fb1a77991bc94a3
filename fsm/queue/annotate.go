package queue

import (
	"bytes"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// annotationsOf returns what a settlement adds to messages that it does not end, or the edit
// of those that it discards. It is a copy: nothing of a command is kept.
func annotationsOf(s *shared, cmd *logpb.Settle) []*logpb.Annotation {
	list := cmd.GetAnnotations()
	if !s.since(3) || cmd.Outcome == logpb.Settle_ACK || len(list) == 0 {
		return nil
	}
	if cmd.Outcome == logpb.Settle_DISCARD {
		list = slices.DeleteFunc(slices.Clone(list), func(a *logpb.Annotation) bool { return len(a.GetKey()) > 0 })
	}
	return copied(list)
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
// not changed: the newest first, and of these those that fit. An edit has bounds of its own.
func withAnnotations(had, more []*logpb.Annotation) (all []*logpb.Annotation) {
	left, keys := fsm.MaxAnnotationBytes, fsm.MaxAnnotations
	for _, list := range [...][]*logpb.Annotation{more, had} {
		for _, a := range list {
			size := len(a.GetKey()) + len(a.GetValue())
			fits := size <= left && keys > 0
			if len(a.GetKey()) == 0 {
				fits = size <= fsm.MaxEdit
			}
			if !fits || slices.ContainsFunc(all, func(o *logpb.Annotation) bool { return bytes.Equal(o.GetKey(), a.GetKey()) }) {
				continue
			}
			all = append(all, a)
			if len(a.GetKey()) > 0 {
				left, keys = left-size, keys-1
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
		h := taken[i].handle
		if had := ms.extra(h).annotations; had == nil {
			ms.setAnnotations(h, more) // which many messages may share
		} else {
			ms.setAnnotations(h, withAnnotations(had, more))
		}
		ms.scratch.steps++
	}
}

// setAnnotations replaces what receivers have added to message h, of which the edit counts
// in its size. all is not empty.
func (ms *messages) setAnnotations(h uint32, all []*logpb.Annotation) {
	place := ms.Get(h).place
	ms.counts[place].sub(ms.weight(h))
	ms.editExtra(h).annotations = all
	ms.counts[place].add(ms.weight(h))
}

// weight is what message h counts in its place.
func (ms *messages) weight(h uint32) Count {
	x := ms.Get(h)
	c := x.count()
	if x.info != 0 {
		c.Bytes += uint64(len(fsm.EditOf(ms.extras.Get(x.info).annotations)))
	}
	return c
}
