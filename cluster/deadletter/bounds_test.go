package deadletter

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// longKeys are routing keys that no payload has room for, as the log of a former
// version may have them in a queue's settings.
var longKeys = []string{strings.Repeat("é", 150), strings.Repeat("k", 300), strings.Repeat("k", 70_000)}

// mustHold checks that every queue that letters went to holds these bodies, all
// with the key as far as there is room for it.
func (b *letterbox) mustHold(t *testing.T, key string, bodies ...string) {
	t.Helper()
	for _, r := range b.targets {
		if got := r.Bodies(); !slices.Equal(got, bodies) {
			t.Errorf("%s holds %q, want %q", r.Spec().Name, got, bodies)
		}
		r.View(func(m *queue.Machine) {
			for x := range m.Messages() {
				raw, _ := r.Payload(x.Ref)
				p := fsm.Payload(raw)
				if !p.Valid() || string(p.RoutingKey()) != fsm.Short(key) || x.Ref.Size != uint32(len(raw)) {
					t.Errorf("%s: valid %v, key %.20q …", r.Spec().Name, p.Valid(), p.RoutingKey())
				}
			}
		})
	}
}

// A replicated queue whose dead-letter routing key is too long forwards its
// letters, those that were routed already too, with as much of it as fits.
func TestOutboxLongKey(t *testing.T) {
	for _, key := range longKeys {
		b := newLetterbox(t, "a", "b")
		b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = key, true })
		b.die(t, "one")
		b.run()
		b.source.Commit(t) // it is routed, and its leader has changed
		b.start()
		b.die(t, "two")
		b.drain(t)
		b.mustHold(t, key, "one", "two")
	}
}

// The same for letters of no outbox.
func TestOnceLongKey(t *testing.T) {
	for _, key := range longKeys {
		b := newLetterbox(t, "a", "b")
		b.settings(t, b.source, func(c *logpb.QueueConfig) {
			c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = key, true
			c.DeadLetterStrategy = logpb.QueueConfig_AT_MOST_ONCE
		})
		b.die(t, "one")
		b.w.sender.SendOnce(b.source, b.source.DeadLetters())
		b.carry(t, func() bool { return false })
		b.mustHold(t, key, "one")
	}
}

// damaged is a payload as it was written behind the length of its routing key
// modulo 256.
func damaged() []byte {
	key := strings.Repeat("k", 300)
	return append(append([]byte{0, byte(len(key) & 0xff)}, key...), 0, 0, 0, 0, 'x')
}

// A message that lies damaged in the log is a letter like any other when it
// dies: with all of it as its body.
func TestDamagedPayload(t *testing.T) {
	raw := damaged()
	if fsm.Payload(raw).Valid() {
		t.Fatal("it is not damaged")
	}
	for _, strategy := range []logpb.QueueConfig_DeadLetterStrategy{logpb.QueueConfig_TRANSACTIONAL, logpb.QueueConfig_AT_MOST_ONCE} {
		b := newLetterbox(t, "a")
		b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterStrategy = strategy })
		b.source.Apply(t, grouptest.Enqueue(raw))
		b.w.sender.SendOnce(b.source, b.source.DeadLetters())
		b.carry(t, func() bool { return false })
		b.drain(t)
		b.mustHold(t, "", string(raw))
	}

}

// A letter is routed by the key that it carries.
func TestLongKeyRoutes(t *testing.T) {
	for _, key := range longKeys {
		b := newLetterbox(t)
		q := b.w.MustQueue("bound")
		b.w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{
			Vhost: "/", Source: "amq.direct", Destination: "bound", RoutingKey: fsm.Short(key),
		}}})
		b.targets[q.ID] = grouptest.NewQueue(t, b.w.Catalog, q)
		b.settings(t, b.source, func(c *logpb.QueueConfig) {
			c.DeadLetterExchange, c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = "amq.direct", key, true
		})
		b.die(t, "one")
		b.drain(t)
		b.mustHold(t, key, "one")
	}
}
