package fsmtest

import (
	"encoding/binary"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// FuzzModel lets the fuzzer choose the history that TestModel draws.
func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(modelProperty)) }

// FuzzApply applies whatever decodes: any bytes are a list of entries, each
// behind its length. No command makes the machine panic or breaks an
// invariant, and a replica that restores a snapshot in between comes to the
// same state.
func FuzzApply(f *testing.F) {
	for seed := range 8 {
		h := rapid.Custom(generated).Example(seed)
		f.Add(encodeEntries(f, h[:min(len(h), 12)])) // the fuzzer likes short ones
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, replica := newMachine(), newMachine()
		for index := uint64(1); len(data) > 2; index++ {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			e := entry{index, 1 + index/16, new(logpb.Entry)}
			if err := e.header.UnmarshalVT(data[2 : 2+n]); err != nil {
				e.header = &logpb.Entry{Commands: []*logpb.Command{{Kind: logpb.Command_TICK}}}
			}
			data = data[2+n:]
			applyAll(m, e)
			applyAll(replica, e)
			if err := m.Check(); err != nil {
				t.Fatalf("after %v: %v\n%s", e.header, err, m)
			}
			if index%4 == 0 {
				replica = mustRestore(t, mustSnapshot(t, replica))
			}
			if m.Hash() != replica.Hash() {
				t.Fatalf("after %v:\n%s\nthe replica:\n%s", e.header, m, replica)
			}
		}
	})
}

func encodeEntries(f *testing.F, h history) []byte {
	var data []byte
	for _, e := range h {
		b, err := e.header.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1<<16 {
			data = append(binary.BigEndian.AppendUint16(data, uint16(len(b))), b...)
		}
	}
	return data
}

// FuzzRestore restores whatever there is: it fails, or gives a machine that is
// sound and writes the same snapshot again.
func FuzzRestore(f *testing.F) {
	for seed := range 6 {
		m := newMachine()
		h := rapid.Custom(generated).Example(seed)
		for _, e := range h[:min(len(h), 12*(seed+1))] {
			applyAll(m, e)
		}
		f.Add([]byte(mustSnapshot(f, m)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMachine()
		if err := m.Restore(strings.NewReader(string(data))); err != nil {
			return
		}
		if err := m.Check(); err != nil {
			t.Fatalf("restored and not sound: %v\n%s", err, m)
		}
		again := mustSnapshot(t, m)
		if other := mustSnapshot(t, mustRestore(t, again)); other != again {
			t.Fatalf("two restores differ:\n%q\n%q", again, other)
		}
		var eff fsm.Effects
		m.Apply(fsm.Meta{Index: m.Index() + 1, Term: 9, Now: start}, &logpb.Command{Kind: logpb.Command_TICK}, &eff)
		if err := m.Check(); err != nil {
			t.Fatalf("not sound after a tick: %v", err)
		}
	})
}
