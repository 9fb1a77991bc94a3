package session

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// permit makes a user with tags who may do what the patterns say.
func (w *world) permit(user string, tags []string, configure, write, read string) {
	w.t.Helper()
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{Name: user, Tags: tags}}})
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{
		User: user, Vhost: "/", Configure: configure, Write: write, Read: read,
	}}})
}

func (w *world) mustConnect(user string) *Connection {
	w.t.Helper()
	c, err := w.sessions.Connect(context.Background(), user, "/")
	if err != nil {
		w.t.Fatalf("connect as %s: %v", user, err)
	}
	return c
}

func TestLoopbackUsers(t *testing.T) {
	w := newWorld(t)
	hash := login.HashPassword("p")
	w.sessions.loopback = []string{"guest"}
	for _, user := range []string{"guest", "ann"} {
		w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{
			Name: user, PasswordHash: hash, HashAlgorithm: login.HashAlgorithm,
		}}})
	}
	for _, c := range []struct {
		user, password, from string
		ok                   bool
	}{
		{"guest", "p", "127.0.0.1", true}, {"guest", "p", "::1", true}, {"guest", "p", "::ffff:127.0.0.9", true},
		{"guest", "p", "192.0.2.1", false}, {"guest", "p", "2001:db8::1", false}, {"guest", "x", "127.0.0.1", false},
		{"ann", "p", "192.0.2.1", true}, {"ann", "x", "192.0.2.1", false}, {"bob", "p", "127.0.0.1", false}, {"bob", "", "127.0.0.1", false},
	} {
		err := w.sessions.Login(context.Background(), c.user, c.password, netip.MustParseAddr(c.from))
		if c.ok != (err == nil) || err != nil && !errors.Is(err, errLogin) {
			t.Errorf("%s with %q from %s: %v", c.user, c.password, c.from, err)
		}
	}
}

// TestPublishAccess: what a publish is refused for, in its order, and that a
// change counts at once.
func TestPublishAccess(t *testing.T) {
	w := newWorld(t)
	w.permit("ann", nil, "", ".*", "")
	s, err := w.mustConnect("ann").OpenSession(&recorder{})
	if err != nil {
		t.Fatal(err)
	}
	rule := func(write string) {
		w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: &logpb.PutTopicPermission{
			User: "ann", Vhost: "/", Exchange: "amq.topic", Write: write,
		}}})
	}
	foreign := fsm.Refuse(fsm.Precondition, "foreign user")
	badTTL := fsm.Refuse(fsm.Precondition, "bad ttl")
	number := uint64(0)
	try := func(what, want string, p fsm.Publish) {
		t.Helper()
		number++
		p.Number, p.Payload, p.TTL, p.Priority = number, grouptest.Payload("x"), -1, -1
		_, err := s.Publish(&p)
		if text := textOf(err); text != want {
			t.Errorf("%s: %q, want %q", what, text, want)
		}
	}
	const refused = "write access to topic 'bad' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
	try("no rule", "", fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad"})
	rule("^ok")
	try("a key that is allowed", "", fsm.Publish{Exchange: "amq.topic", RoutingKey: "ok"})
	try("one that is not", refused, fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad", UserError: foreign})
	try("one of several", refused, fsm.Publish{Exchange: "amq.topic", RoutingKey: "ok", Copies: []string{"ok", "bad"}})
	try("first the time-to-live", "bad ttl", fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad", TTLError: badTTL})
	try("another exchange", "", fsm.Publish{Exchange: "amq.direct", RoutingKey: "bad"})
	try("last the user", "foreign user", fsm.Publish{Exchange: "amq.topic", RoutingKey: "ok", UserError: foreign})
	rule("^bad$")
	try("another rule", "", fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad"})
	try("what the rule before allowed", strings.ReplaceAll(refused, "bad", "ok"), fsm.Publish{Exchange: "amq.topic", RoutingKey: "ok"})
	rule(`^(k)\d+(?!x)$`)
	for i := range 2 * maxAllowedKeys {
		try("one of many keys", "", fsm.Publish{Exchange: "amq.topic", RoutingKey: "k" + strconv.Itoa(i)})
	}
	if n := len(s.publisher.keys); n > maxAllowedKeys {
		t.Errorf("%d keys are remembered", n)
	}
	rule("")
	try("no more", refused, fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad"})
	rule("^bad$")
	w.permit("ann", []string{"impersonator"}, "", ".*", "")
	try("an impersonator", "", fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad", UserError: foreign})
	command := fsm.Publish{Exchange: catalog.CommandExchange, RoutingKey: "schedule.cancel", HeadersError: fsm.Refuse(fsm.Precondition, "bad headers")}
	try("a command, which is answered otherwise", "", command)
	command.UserError = foreign
	w.permit("ann", nil, "", ".*", "")
	try("a command in the name of another user", "foreign user", command)
	w.permit("ann", nil, "", "", "")
	command.UserError = nil
	try("a command without any right, which is answered otherwise", "", command)
	try("no permission any more", "write access to exchange 'amq.topic' in vhost '/' refused for user 'ann'", fsm.Publish{Exchange: "amq.topic", RoutingKey: "bad"})
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
