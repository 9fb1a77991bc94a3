package raftlog

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// without reads a group's snapshot for a receiver that has what is on a list.
func without(t testing.TB, g *Group, list []byte) []byte {
	t.Helper()
	snaps, err := g.Snapshots().List()
	must(t, err)
	_, r, err := g.Snapshots().Open(snaps[0].ID)
	must(t, err)
	defer r.Close()
	size, err := r.(*streamReader).Without(list)
	must(t, err)
	var b bytes.Buffer
	if n, err := b.ReadFrom(r); err != nil || n != size {
		t.Fatalf("%d bytes, not %d: %v", n, size, err)
	}
	return b.Bytes()
}

// copyOf is a member with the log of source up to some entry.
func copyOf(t testing.TB, last uint64) (vfs.FS, *Group) {
	t.Helper()
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	lead(t, g, 1)
	mustStore(t, g, 1, last, 2)
	return fs, g
}

// A member gets no payload that it has: not those of its log, not those that
// outlived it, and not those that came with an earlier snapshot, which all stay
// where they are. It does get those of other entries with the same index.
func TestInstallKeepsWhatIsHere(t *testing.T) {
	from := source(t) // 2, 4, 13 and 22 are live, 30 is the last entry
	_, state, whole := mustRead(t, from)
	fs, g := copyOf(t, 25)
	g.Release([]uint64{1})
	mustSave(t, g, 12, 2, []byte("old"), except(1, 12, 1, 5, 10)...)
	must(t, g.DeleteRange(1, 12))
	list, done := g.Offer(30)
	small := without(t, from, list)
	if want := len(whole) - len(body(2, 2)) - len(body(4, 2)) - len(body(13, 2)) - len(body(22, 2)); len(small) != want {
		t.Errorf("the stream has %d bytes, want %d", len(small), want)
	}
	must(t, install(g, 30, 2, small, 100))
	done()
	check := func(foreign int) {
		t.Helper()
		mustPayload(t, g, 2, 2, 4, 13, 22)
		mustNoPayload(t, g, 1, 3, 6, 14, 21, 24)
		mustRecords(t, g, kindPayload, 4-foreign)
		mustRecords(t, g, kindPin, 4-foreign)
		mustRecords(t, g, kindForeign, foreign)
		mustRecords(t, g, kindForeignPin, foreign)
		if meta, got, again := mustRead(t, g); !bytes.Equal(got, state) || !bytes.Equal(again, whole) || meta.Index != 30 {
			t.Errorf("the snapshot differs: %+v", meta)
		}
	}
	check(0)
	g = reopen(t, fs, g)
	check(0)

	// What came with a snapshot is not sent with the next one either.
	fs, g = copyOf(t, 3)
	must(t, install(g, 30, 2, whole, 100))
	list, done = g.Offer(30)
	again := without(t, from, list)
	must(t, install(g, 30, 2, again, 100))
	done()
	if len(again) != len(small) {
		t.Errorf("the stream has %d bytes, want %d", len(again), len(small))
	}
	check(4)
	g = reopen(t, fs, g)
	check(4)
	g.Release([]uint64{2, 13})
	mustNoPayload(t, g, 2, 13)
	mustRecords(t, g, kindForeign, 2)
	mustRecords(t, g, kindForeignPin, 2)

	// Entries of a term that lost are others, whatever their index.
	_, g = copyOf(t, 0)
	mustStore(t, g, 1, 25, 1)
	list, done = g.Offer(30)
	if all := without(t, from, list); !bytes.Equal(all, whole) {
		t.Error("payloads of other entries count as the same")
	}
	done()
}

// What is offered stays until it is no longer; and what the leader leaves out
// must be here, the same.
func TestOfferIsKept(t *testing.T) {
	_, g := copyOf(t, 30)
	mustSave(t, g, 12, 2, []byte("old"), except(1, 12, 5, 10)...)
	must(t, g.DeleteRange(1, 12))
	_, done := g.Offer(30)
	_, other := g.Offer(30)
	g.Release([]uint64{2, 22})
	other()
	mustPayload(t, g, 2, 2, 22)
	mustRecords(t, g, kindPin, 10)
	done()
	mustNoPayload(t, g, 2)
	mustRecords(t, g, kindPin, 9)
	if i := g.entries.at(22); !i.dead {
		t.Error("what was released meanwhile is not")
	}
	for what, p := range map[string]pin{
		"one that was released": pinOf(1, 2, 2), "one of another term": pinOf(1, 4, 1), "one that is not here": pinOf(1, 41, 2),
	} {
		stream := appendPart(append(appendStreamHead(nil, 1, sum(nil, []byte("s"))), 's'), partKept, p, nil)
		if err := install(g, 50, 2, appendEnd(stream, 1), 100); !errors.Is(err, ErrStream) {
			t.Errorf("%s is left out: %v", what, err)
		}
		mustBounds(t, g, 13, 30)
		mustPayload(t, g, 2, 4, 13, 29)
	}
}

// What a machine has released while something was offered, and a snapshot was
// installed meanwhile, is another machine's to release.
func TestReleaseOfReplacedMachine(t *testing.T) {
	from := source(t)
	_, g := copyOf(t, 25)
	list, done := g.Offer(30)
	g.Release([]uint64{2, 13})
	must(t, install(g, 30, 2, without(t, from, list), 100))
	done()
	mustPayload(t, g, 2, 2, 4, 13, 22)
	g.Release([]uint64{2})
	mustNoPayload(t, g, 2)
}

// Lists that nobody has written are refused.
func TestBadOffer(t *testing.T) {
	from := source(t)
	_, g := copyOf(t, 9)
	list, done := g.Offer(9)
	defer done()
	snaps, err := from.Snapshots().List()
	must(t, err)
	for name, bad := range map[string][]byte{
		"cut": list[:len(list)-1], "no index": append([]byte{0}, list[1:]...), "no number": bytes.Repeat([]byte{0xff}, 20),
	} {
		_, r, err := from.Snapshots().Open(snaps[0].ID)
		must(t, err)
		if _, err := r.(*streamReader).Without(bad); !errors.Is(err, ErrStream) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, r.Close())
	}
}

// A machine's state that was captured before an installed snapshot replaced the
// machine is refused, also if it is newer: raft would cut the log up to there,
// and still has to apply it.
func TestStateOfReplacedMachineIsRefused(t *testing.T) {
	_, _, stream := mustRead(t, source(t))
	_, g := copyOf(t, 40)
	before := g.Origin()
	must(t, install(g, 30, 2, stream, 4096))
	k, err := g.Snapshots().Create(1, 35, 2, testConfig, 1, nil) // after its state was captured
	must(t, err)
	_, err = k.Write([]byte("newer"))
	must(t, err)
	k.(*Sink).SetLive(nil)
	k.(*Sink).SetOrigin(before)
	if err := k.Close(); !errors.Is(err, errSuperseded) {
		t.Errorf("a state of the machine before: %v", err)
	}
	if at := g.SnapshotIndex(); at != 30 {
		t.Errorf("the snapshot is of entry %d", at)
	}
	mustSave(t, g, 35, 2, []byte("newer"), 31)
}

// Entries that another member needs stay although a snapshot covers them, until
// nobody needs them. They do not count as what a snapshot could free.
func TestRetain(t *testing.T) {
	fs, g := copyOf(t, 40)
	g.Release(except(1, 35, 7))
	mustSave(t, g, 35, 2, []byte("state"), 7)
	g.Retain(20)
	if n := g.Reclaimable(); n != g.Retained(0, 1<<40)-g.Retained(20, 1<<40) || n == 0 {
		t.Errorf("%d bytes can be freed", n)
	}
	must(t, g.DeleteRange(1, 35))
	mustBounds(t, g, 20, 40)
	if n := g.Reclaimable(); n != 0 {
		t.Errorf("%d bytes can be freed", n)
	}
	must(t, g.DeleteRange(20, 35)) // raft asks again
	mustBounds(t, g, 20, 40)
	mustPayload(t, g, 2, 7)
	if n := g.Retained(20, 10); n <= 10 || n >= g.Retained(20, 1<<40) {
		t.Errorf("counted up to %d", n)
	}
	g.Retain(28)
	mustBounds(t, g, 28, 40)
	g.Retain(50)
	mustBounds(t, g, 36, 40)
	g.Retain(0)
	mustBounds(t, g, 36, 40)
	g = reopen(t, fs, g)
	mustBounds(t, g, 36, 40)
	mustPayload(t, g, 2, 7, 38)
}
