package group

import (
	"reflect"

	"github.com/hashicorp/raft"
)

// endingWith makes a future of raft end with ErrRaftShutdown when ending is
// closed. Raft leaves futures without an answer that wait in one of its
// channels when it shuts down: entries to take, and entries to apply. It has
// the means to prevent that, a channel in the future, but sets it for some
// kinds only. Nobody else touches the field, and only Error reads it.
func endingWith[F raft.Future](f F, ending chan struct{}) F {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return f // it has its answer
	}
	if c := v.Elem().FieldByName("ShutdownCh"); c.IsValid() && c.CanSet() {
		c.Set(reflect.ValueOf(ending))
	}
	return f
}

// barrier returns when everything that was committed before has been applied
// here. Only the leader can.
func (g *Group) barrier() error { return endingWith(g.raft.Barrier(0), g.ending).Error() }
