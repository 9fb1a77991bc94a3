package fsmtest

import (
	"bytes"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// addition is what a receiver has added to a message.
type addition struct{ key, value string }

// additionsOf is what a settlement adds to messages that go on.
func (q *model) additionsOf(d *logpb.Settle) (all []addition) {
	if q.version < 3 || d.GetOutcome() == logpb.Settle_ACK {
		return nil
	}
	all = additions(d.GetAnnotations())
	if d.Outcome == logpb.Settle_DISCARD {
		all = slices.DeleteFunc(all, func(a addition) bool { return a.key != "" })
	}
	return all
}

// brought is what was added to a message before it came.
func (q *model) brought(e *logpb.Enqueue) []addition {
	if q.version < 3 {
		return nil
	}
	return additions(e.Annotations)
}

func additions(of []*logpb.Annotation) (all []addition) {
	for _, a := range of {
		all = append(all, addition{string(a.GetKey()), string(a.GetValue())})
	}
	return fitting(all)
}

// fitting leaves out what has come before, and what does not fit.
func fitting(all []addition) (fit []addition) {
	size, edits := 0, 0
	for _, a := range all {
		known := slices.ContainsFunc(fit, func(o addition) bool { return o.key == a.key })
		switch n := size + len(a.key) + len(a.value); {
		case known:
		case a.key == "" && len(a.value) <= fsm.MaxEdit:
			fit, edits = append(fit, a), 1
		case a.key != "" && n <= fsm.MaxAnnotationBytes && len(fit)-edits < fsm.MaxAnnotations:
			fit, size = append(fit, a), n
		}
	}
	return fit
}

func (q *model) annotate(settled []*message, more []addition) {
	for _, x := range settled {
		if len(more) > 0 {
			x.added = fitting(slices.Concat(more, x.added))
		}
	}
}

// annotations are those of x as a machine has them.
func (x *message) annotations() (all []*logpb.Annotation) {
	for _, a := range x.added {
		all = append(all, &logpb.Annotation{Key: []byte(a.key), Value: []byte(a.value)})
	}
	return all
}

func sameAnnotations(a, b []*logpb.Annotation) bool {
	return slices.EqualFunc(a, b, func(a, b *logpb.Annotation) bool { return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) })
}

// annotations are few of different names, so that they meet.
func (g *generator) annotations() (all []*logpb.Annotation) {
	for range g.n("annotations", 4) {
		value := bytes.Repeat([]byte("v"), of(g, "value", 1, 5, 2000, fsm.MaxAnnotationBytes, 0))
		all = append(all, &logpb.Annotation{Key: []byte(of(g, "annotation", "a", "b", "c", "")), Value: value})
	}
	return all
}
