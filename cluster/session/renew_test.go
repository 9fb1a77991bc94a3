package session

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// With a new boot number all sessions of the one before end at once, and new
// ones are served.
func TestRenewEndsSessions(t *testing.T) {
	w, c, s, l := mustStream(t)
	w.submits(l.Queue(), func(string, group.Batch) error { return nil })
	publish(s, l, 1, "m")
	k := request(s, l, &logpb.Command{Kind: logpb.Command_PURGE})
	streamtest.Take(l)
	w.sessions.Renew(9)
	w.sessions.Renew(9)
	if len(c.lost) != 1 || !isKind(c.lost[0], fsm.Forced) {
		t.Errorf("told %v", c.lost)
	}
	if !isDone(k) || k.Result.Code != fsm.NoSession || len(l.Route().Streams()) != 0 {
		t.Error("its stream goes on")
	}
	w.queues.Routes.Stream(l.Queue(), s.id).Answer("n1", []group.Outcome{grouptest.OK(1, 1)})
	if c.settled[1] != 0 {
		t.Error("a publish of a boot that is over is confirmed")
	}
	other := w.MustQueue("other")
	s.route = []*catalog.Queue{other}
	s.enqueue(&fsm.Publish{Number: 2, Payload: grouptest.Payload("m"), TTL: -1, Priority: -1}, catalog.Ceilings{})
	if len(w.queues.Routes.Route(other).Streams()) != 0 || len(c.settled) != 0 {
		t.Error("it begins new streams")
	}
	began := time.Now()
	s.Close(context.Background())
	if time.Since(began) >= closeWait {
		t.Error("its end waits for queues")
	}

	next := &recorder{}
	if s := w.mustSession(next); s.id.Boot != 9 || w.sessions.session(s.id.Num) != s {
		t.Errorf("a new session is %+v", s.id)
	}
	if len(next.lost) != 0 {
		t.Error("a new session is lost")
	}
}
