package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// dice chooses numbers, from a seed or from rapid.
type dice interface {
	to(n uint64) uint64 // 0 … n
}

type rapidDice struct{ t *rapid.T }

func (d rapidDice) to(n uint64) uint64 { return rapid.Uint64Range(0, n).Draw(d.t, "n") }

// actor does to a group and to its model what raft and a machine might do.
type actor struct {
	g     *Group
	m     *model
	d     dice
	term  uint64
	small bool // states are
	slept uint64
	// behind is not nil if what is appended is synced behind. It is told of each append, and of
	// the moment when all of them are durable.
	behind func(durable bool)
	// acted is called with what the model will be once the next record is
	// committed; durable says that all before is then, too.
	acted func(m *model, durable bool)
}

// state returns a state, which fills several chunks at times.
func (a *actor) state() string {
	size := int(a.d.to(300))
	if large := a.d.to(1) == 1; large && !a.small {
		size *= 1801
	}
	return string(someState(size))
}

// lag has what is appended synced behind.
func (a *actor) lag(behind func(durable bool)) {
	a.behind = behind
	a.g.Overlap()
	a.g.voters = voters{count: 2} // entries of the model are no configurations
}

// thenBehind is then for what is synced behind, if anything is.
func (a *actor) thenBehind() {
	a.then(a.behind == nil)
	if a.behind != nil {
		a.behind(false)
	}
}

func (a *actor) then(durable bool) { a.acted(a.m.clone(), durable) }

// step does one thing and returns its name.
func (a *actor) step() (string, error) {
	if a.behind != nil && a.d.to(3) == 0 {
		a.g.awaitDurable()
		a.behind(true)
	}
	switch a.d.to(17) {
	case 0, 1, 2, 3:
		return a.append()
	case 4:
		return a.conflict()
	case 5:
		return a.vote()
	case 6, 7:
		return a.release()
	case 8:
		return a.commit()
	case 9:
		return a.save()
	case 10, 11:
		return a.compact()
	case 12:
		return a.install()
	case 16, 17:
		return a.sleep()
	case 13:
		a.g.s.segments.retire()
		a.g.s.tidySegments(0, int(a.d.to(2)))
		return "tidy", nil
	case 14:
		return a.unload()
	default:
		return a.abandon()
	}
}

func (a *actor) append() (string, error) {
	from := a.m.next()
	to := from + a.d.to(6)
	if a.d.to(9) == 0 {
		to += 90 // enough for range deletions
	}
	a.m.store(from, to, a.term)
	a.thenBehind()
	return fmt.Sprintf("append %d … %d/%d", from, to, a.term), a.g.StoreLogs(makeLogs(from, to, a.term))
}

// conflict replaces uncommitted entries by those of a new term.
func (a *actor) conflict() (string, error) {
	first, last := a.m.bounds()
	from := max(a.m.committed+1, first)
	if from > last || last == 0 {
		return "no conflict", nil
	}
	from += a.d.to(last - from)
	a.term++
	a.m.truncateBack(from)
	a.then(false)
	if a.d.to(2) > 0 {
		if err := a.g.DeleteRange(from, last); err != nil {
			return "delete", err
		}
	}
	a.m.store(from, from+2, a.term)
	a.thenBehind()
	return fmt.Sprintf("conflict from %d/%d", from, a.term), a.g.StoreLogs(makeLogs(from, from+2, a.term))
}

// vote moves to another term, and votes in it, or for the second time in the same one, as raft does not.
func (a *actor) vote() (string, error) {
	if a.d.to(3) > 0 {
		a.term++
		a.m.stable[TermKey] = a.term
		a.then(false)
		if err := a.g.SetUint64([]byte(TermKey), a.term); err != nil || a.d.to(1) > 0 {
			return fmt.Sprintf("term %d", a.term), err
		}
	}
	candidate := a.d.to(9)
	if a.term > a.m.stable[VoteTermKey] && a.d.to(2) == 0 && a.g.overlap.settled() && a.g.place.known() {
		return a.ballot(candidate)
	}
	a.m.stable[VoteTermKey], a.m.stable[VotedForKey] = a.term, candidate
	a.thenBehind()
	err := a.g.SetUint64([]byte(VoteTermKey), a.term)
	return fmt.Sprintf("vote for %d in term %d", candidate, a.term), errors.Join(err, a.g.SetUint64([]byte(VotedForKey), candidate))
}

// ballot has the group vote without a raft, unloaded if it may be.
func (a *actor) ballot(candidate uint64) (string, error) {
	s, id := a.g.s, a.g.id
	what := fmt.Sprintf("ballot for %d in term %d", candidate, a.term)
	unloaded := s.Unload(id)
	if unloaded {
		a.m.reopen()
	}
	a.m.stable[TermKey], a.m.stable[VoteTermKey], a.m.stable[VotedForKey] = a.term, a.term, candidate
	a.then(true)
	b := Ballot{Group: id, Term: a.term, Index: 1 << 40, IndexTerm: a.term}
	if !s.Vote(string(binary.BigEndian.AppendUint64(nil, candidate)), []Ballot{b})[0] {
		return what, errors.New("there is no vote")
	}
	if unloaded {
		var err error
		if a.g, err = s.Group(id); err != nil {
			return what, err
		}
		if a.behind != nil {
			a.lag(a.behind)
		}
	}
	return what, nil
}

func (a *actor) commit() (string, error) {
	_, last := a.m.bounds()
	if last > a.m.committed {
		a.m.committed += 1 + a.d.to(last-a.m.committed-1)
	}
	return fmt.Sprintf("commit %d", a.m.committed), nil
}

func (a *actor) release() (string, error) {
	live := a.m.live(a.m.committed)
	if len(live) == 0 {
		return "nothing to release", nil
	}
	var gone []uint64
	if a.d.to(3) == 0 { // a purge
		gone = live
	} else {
		for range a.d.to(8) + 1 {
			gone = append(gone, live[a.d.to(uint64(len(live)-1))])
		}
	}
	a.m.release(gone)
	a.then(false)
	a.g.Release(gone)
	return fmt.Sprintf("release %v", gone), nil
}

func (a *actor) save() (string, error) {
	if a.m.committed <= a.m.snapIndex {
		return "nothing to save", nil
	}
	_, last := a.m.bounds()
	index := a.m.snapIndex + 1 + a.d.to(a.m.committed-a.m.snapIndex-1)
	term := a.m.terms[index]
	if index > last || term == 0 {
		return "nothing to save", nil
	}
	state := a.state()
	var live []uint64
	for _, i := range a.m.live(index) {
		if a.d.to(4) > 0 {
			live = append(live, i)
		}
	}
	a.m.save(index, term, state)
	a.then(true)
	a.m.sweep(live, index)
	a.then(false)
	return fmt.Sprintf("save at %d", index), save(a.g, index, term, []byte(state), live)
}

func (a *actor) compact() (string, error) {
	first, _ := a.m.bounds()
	if first == 0 || first > a.m.snapIndex {
		return "nothing to compact", nil
	}
	to := first + a.d.to(a.m.snapIndex-first)
	a.m.truncatePrefix(to)
	a.then(false)
	return fmt.Sprintf("compact %d … %d", first, to), a.g.DeleteRange(first, to)
}

func (a *actor) install() (string, error) {
	index := max(a.m.snapIndex, a.m.committed) + a.d.to(20)
	if index == 0 {
		return "nothing to install", nil
	}
	list, done := a.g.Offer(index)
	defer done()
	offered, err := a.offered(list, index)
	if err != nil {
		return "offer", err
	}
	a.term++
	var live []uint64
	terms, kept := map[uint64]uint64{}, map[uint64]bool{}
	for i := uint64(1); i <= index; i++ {
		term, has := offered[i]
		if i%5 == 0 || a.d.to(5) > 0 && (!has || a.d.to(2) == 0) {
			continue
		}
		if !has || a.d.to(3) == 0 {
			term = a.term // another entry than this member's
		}
		live, terms[i] = append(live, i), term
		kept[i] = has && term == offered[i]
	}
	maps.DeleteFunc(kept, func(_ uint64, yes bool) bool { return !yes })
	termOf := func(i uint64) uint64 { return terms[i] }
	state := a.state()
	a.m.install(index, a.term, state, live, termOf, kept)
	a.then(true)
	stream := streamWith(a.g.id, state, live, termOf, kept)
	return fmt.Sprintf("install at %d, %d of %d kept", index, len(kept), len(live)), install(a.g, index, a.term, stream, 1+int(a.d.to(100000)))
}

// offered reads a list of what the group has up to index, and compares it with
// the model. It returns the terms of the entries.
func (a *actor) offered(list []byte, index uint64) (map[uint64]uint64, error) {
	terms := map[uint64]uint64{}
	want := a.m.live(index)
	for p := (pin{}); len(list) > 0; {
		var err error
		if p, list, err = nextOffered(p, list); err != nil {
			return nil, err
		}
		term, ok := a.m.terms[p.index]
		if !ok {
			term = a.m.pins[p.index]
		}
		if len(want) == 0 || want[0] != p.index || p != pinOf(a.g.id, p.index, term) {
			return nil, fmt.Errorf("%+v is offered in place of %v", p, want)
		}
		want, terms[p.index] = want[1:], term
	}
	if len(want) > 0 {
		return nil, fmt.Errorf("%v are not offered", want)
	}
	return terms, nil
}

// abandon begins to install and does not get to the end.
func (a *actor) abandon() (string, error) {
	index := max(a.m.snapIndex, a.m.committed) + 10
	live := []uint64{index - 1, index}
	live = slices.DeleteFunc(live, func(i uint64) bool { return i%5 == 0 })
	state := someState(chunkSize * 5)
	if a.small {
		state = state[:300]
	}
	stream := streamOf(a.term, string(state), live)
	stream = stream[:a.d.to(uint64(len(stream)-1))]
	if install(a.g, index, a.term, stream, 70000) == nil {
		return "abandon", fmt.Errorf("half a stream was installed")
	}
	return "abandon", nil
}

// unload has the group forgotten, and takes it up again.
func (a *actor) unload() (string, error) {
	s, id := a.g.s, a.g.id
	if !s.Unload(id) {
		a.g.mu.Lock()
		defer a.g.mu.Unlock()
		if a.g.entries.inSegments() || a.g.pins.inSegments() || !a.g.overlap.settled() {
			return "not unloaded", nil
		}
		return "not unloaded", errors.New("nothing prevents it")
	}
	var err error
	if a.g, err = s.Group(id); err != nil {
		return "unload", err
	}
	a.m.reopen()
	if a.behind != nil {
		a.lag(a.behind)
	}
	return "unload", nil
}

// sleep records that the group sleeps.
func (a *actor) sleep() (string, error) {
	if last := a.m.next() - 1; last == 0 || !a.g.overlap.settled() {
		return "not asleep", nil
	}
	a.slept++
	a.m.asleep = a.slept
	a.then(false)
	what := fmt.Sprintf("sleep %d", a.slept)
	if !(&Records{}).Put(a.g, binary.BigEndian.AppendUint64(nil, a.slept)) {
		return what, errors.New("it is refused")
	}
	return what, nil
}

// withoutSegments has all payload sections lie in Pebble, so that groups may be unloaded at any time.
func withoutSegments(o Options) Options {
	o.segmentFrom = 1 << 30
	return o
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := vfs.NewMem()
		o := testOptions(t, fs)
		if rapid.Bool().Draw(rt, "without segments") {
			o = withoutSegments(o)
		}
		s, err := Open("db", o)
		must(t, err)
		a := &actor{g: mustGroup(t, s, 1), m: newModel(), d: rapidDice{rt}, term: 1, acted: func(*model, bool) {}}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			what, err := a.step()
			if err == nil && a.d.to(3) == 0 {
				forgetCache(a.g)
			}
			if err == nil {
				err = compare(a.g, a.m)
			}
			if err != nil {
				rt.Fatalf("%s: %v", what, err)
			}
			if a.d.to(9) == 0 {
				a.g = reopen(t, fs, a.g)
				a.m.reopen()
				if err := compare(a.g, a.m); err != nil {
					rt.Fatalf("after reopening: %v", err)
				}
			}
		}
		must(t, a.g.s.Close())
	})
}
