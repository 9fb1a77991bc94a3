package group

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A leader knows which payloads another member has, and that one finds them; who has begun later, and
// asks, is sent them until there are newer ones.
func TestShared(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	g := c.leadAt(1)
	outside := c.hosts[0].outside
	publish := func(seq uint64, body string) {
		t.Helper()
		mustSubmit(t, g, enqueues(seq, -1, strings.Repeat("-", 700), body+strings.Repeat("-", 700)))
	}
	publish(1, "a")
	mustSubmit(t, g, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{
		Kind: logpb.Command_CONSUME, Session: session.Proto(), Seq: 3, Consume: &logpb.Consume{Consumer: 1},
	})})
	delivered := func(n int) fsm.Ref {
		t.Helper()
		var ref fsm.Ref
		outside.await(t, "deliveries", func() bool {
			if len(outside.deliveries) < n {
				return false
			}
			ref = outside.deliveries[n-1].Ref
			return true
		})
		return ref
	}
	shares := func(node string, ref fsm.Ref) (at Shared) {
		t.Helper()
		await(t, "the payload is shared", func() (ok bool) {
			at, ok = g.HeldBy(node, ref)
			return ok
		})
		return at
	}
	first := delivered(2)
	other := c.hosts[1].Group(1)
	at := shares("n2", first)
	want, err := g.Payload(first)
	if err != nil || at.Ref != first || at.Term == 0 {
		t.Fatalf("shared at %+v of %+v; %v", at, first, err)
	}
	await(t, "the member has it", func() bool { return slices.Equal(other.Stored(at), want) })
	for name, wrong := range map[string]Shared{
		"another term":   {at.Ref, at.Term + 1},
		"another entry":  {fsm.Ref{Index: at.Index + 100, Size: 1}, at.Term},
		"beyond its end": {fsm.Ref{Index: at.Index, Offset: at.Offset + 1, Size: at.Size}, at.Term},
	} {
		if got := other.Stored(wrong); got != nil {
			t.Errorf("%s: %d bytes are found", name, len(got))
		}
	}
	if _, ok := other.HeldBy("n1", first); ok {
		t.Error("a member that does not lead shares")
	}
	if _, ok := g.HeldBy("nobody", first); ok {
		t.Error("shared with who is no member")
	}

	mustFollowUp := func() {
		t.Helper()
		await(t, "the member has followed up", func() bool { return other.AppliedIndex() >= first.Index })
	}
	mustFollowUp() // in its log, so that it is not sent again
	c.mustStop(1)
	other = c.start(1, 1)
	mustFollowUp()
	if got := other.Stored(at); got != nil {
		t.Errorf("a member that has just begun has %d bytes in memory", len(got))
	}
	g.Missed("n2")
	if _, ok := g.HeldBy("n2", first); ok {
		t.Error("shared with a member that has missed it")
	}
	shares("n3", first)
	publish(4, "b")
	ref := delivered(4)
	at, want = shares("n2", ref), nil
	if want, err = g.Payload(ref); err != nil {
		t.Fatal(err)
	}
	await(t, "the member has the newer one", func() bool { return slices.Equal(other.Stored(at), want) })
}
