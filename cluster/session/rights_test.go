package session

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	noRead  = "read access to queue 'shut' in vhost '/' refused for user 'ann'"
	noVHost = "access to vhost '/' refused for user 'ann'"
)

// reader is a connection of ann's that consumes from two queues, open and shut.
func (w *world) reader(c *recorder) (*Connection, *Session) {
	w.t.Helper()
	conn, err := w.sessions.Enter(context.Background(), "ann", "/")
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	s, err := conn.OpenSession(c)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	for i, name := range []string{"open", "shut"} {
		q, ok := w.View().Queue("/", name)
		if !ok {
			q = w.MustQueue(name)
		}
		s.mu.Lock()
		s.addConsumer(s.queue(q), uint64(i+1), false)
		s.mu.Unlock()
	}
	return conn, s
}

// kinds takes the commands that a stream has to send.
func kinds(t grouptest.Fatal, to *stream.Stream) (all []logpb.Command_Kind) {
	t.Helper()
	for _, b := range streamtest.Take(to) {
		for _, c := range grouptest.Commands(t, b) {
			all = append(all, c.Kind)
		}
	}
	return all
}

func drop(user string) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteUser{DeleteUser: &logpb.DeleteUser{Name: user}}}
}

// TestRenew: consumers of queues that may not be read any more end, once, the
// others and those of other connections go on.
func TestRenew(t *testing.T) {
	w := newWorld(t)
	w.permit("ann", nil, "", "", ".*")
	c, far := &recorder{}, &recorder{}
	conn, s := w.reader(c)
	w.reader(far)
	if err := conn.Renew(); err != nil || len(c.log) != 0 {
		t.Fatalf("nothing has changed: %v, told %v", err, c.log)
	}
	w.permit("ann", nil, "", "", "^open$")
	for range 2 {
		if err := conn.Renew(); err != nil {
			t.Fatal(err)
		}
	}
	w.permit("ann", nil, "", "^x$", "^open$")
	if err := conn.Renew(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.log, []string{"revoked: " + noRead}) || len(far.log) != 0 {
		t.Errorf("told %v, the other one %v", c.log, far.log)
	}
	for number, want := range map[uint64][]logpb.Command_Kind{1: nil, 2: {logpb.Command_CANCEL}} {
		if got := kinds(t, s.known[number].at.stream); !slices.Equal(got, want) {
			t.Errorf("consumer %d: sent %v, want %v", number, got, want)
		}
	}
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePermission{DeletePermission: &logpb.DeletePermission{User: "ann", Vhost: "/"}}})
	if got := textOf(conn.Renew()); got != noVHost {
		t.Errorf("without permission: %q", got)
	}
}

// TestRenewOfTheGone: a client has to leave whose user or vhost is gone, also if
// there is another one of that name by the time somebody looks.
func TestRenewOfTheGone(t *testing.T) {
	dropVHost := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteVhost{DeleteVhost: &logpb.DeleteVhost{Name: "/"}}}
	makeVHost := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}}
	for _, c := range []struct {
		what          string
		gone          *logpb.CatalogCommand
		users, vhosts []string
		comeAgain     bool
		want          string
	}{
		{"the user", drop("ann"), nil, nil, false, "user 'ann' was deleted"},
		{"the vhost", dropVHost, nil, nil, false, "vhost '/' is down"},
		{"the user, who is there again", drop("ann"), []string{"ann"}, nil, true, "user 'ann' was deleted"},
		{"the vhost, which is there again", dropVHost, nil, []string{"/"}, true, "vhost '/' is down"},
		{"another user", drop("bob"), []string{"bob"}, nil, true, ""},
	} {
		w := newWorld(t)
		w.permit("bob", nil, ".*", ".*", ".*")
		w.permit("ann", nil, ".*", ".*", ".*")
		conn, _ := w.reader(&recorder{})
		w.Commit(c.gone)
		w.sessions.Departed(c.users, c.vhosts)
		if c.comeAgain {
			w.Commit(makeVHost)
			w.permit("ann", nil, ".*", ".*", ".*")
			next, _ := w.reader(&recorder{})
			if err := next.Renew(); err != nil {
				t.Errorf("%s: one who came later: %v", c.what, err)
			}
		}
		if got := textOf(conn.Renew()); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestRevokedWhileAsking: a right that is taken away while a consumer is being
// registered, or a get repeated, is missed by neither.
func TestRevokedWhileAsking(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		ask  func(*Session) error
		code fsm.Code
		want []logpb.Command_Kind
	}{
		"consume": {
			func(s *Session) error { return s.Consume(ctx, fsm.ConsumeSpec{Queue: "shut", Number: 1, Tag: "c"}) },
			fsm.OK, []logpb.Command_Kind{logpb.Command_CONSUME, logpb.Command_CANCEL},
		},
		"get": {
			func(s *Session) error {
				_, _, err := s.Get(ctx, "shut", false)
				return err
			},
			fsm.NotYet, []logpb.Command_Kind{logpb.Command_GET},
		},
	} {
		w := newWorld(t)
		w.permit("ann", nil, "", "", ".*")
		q := w.MustQueue("shut")
		s, err := w.mustConnect("ann").OpenSession(&recorder{})
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan logpb.Command_Kind, 10)
		target := w.queues.Routes.Route(q)
		w.submits(q.ID, func(_ string, b group.Batch) error {
			for _, m := range grouptest.Commands(t, b) {
				sent <- m.Kind
				id, seq := fsm.SessionFrom(m.Session), m.Seq
				w.node.Spawn("answer", func() {
					w.permit("ann", nil, "", "", "^open$")
					w.queues.Routes.Stream(q.ID, id).Answer("n1", []group.Outcome{grouptest.Code(seq, c.code)})
				})
			}
			return nil
		})
		target.Lead("n1", 1)
		if got := textOf(c.ask(s)); got != noRead {
			t.Errorf("%s: %q", name, got)
		}
		for _, want := range c.want {
			select {
			case got := <-sent:
				if got != want {
					t.Errorf("%s: sent %v, want %v", name, got, want)
				}
			case <-time.After(time.Minute):
				t.Errorf("%s: %v is not sent", name, want)
			}
		}
		s.mu.Lock()
		if len(s.known) != 0 {
			t.Errorf("%s: a consumer is left", name)
		}
		s.mu.Unlock()
	}
}
