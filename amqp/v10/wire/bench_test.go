package wire

import (
	"bytes"
	"io"
	"testing"
)

// hotPaths are what is done per message and must not allocate.
func hotPaths(tb testing.TB) map[string]func() {
	must := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	transfer := &Transfer{Handle: 1, DeliveryID: Some[uint32](7), DeliveryTag: []byte("12345678"), Settled: Some(false)}
	flow := &Flow{
		NextIncomingID: Some[uint32](1000), IncomingWindow: 400, NextOutgoingID: 1, OutgoingWindow: 1 << 31, Handle: Some[uint32](1),
		DeliveryCount: Some[uint32](1000), LinkCredit: Some[uint32](170),
	}
	disposition := &Disposition{Role: true, First: 1000, Last: Some[uint32](1100), Settled: true, State: State{Kind: StateAccepted}}
	modified := &Disposition{Role: true, First: 1000, State: State{Kind: StateModified, Modified: Modified{DeliveryFailed: true}}}
	message := mustHex(tb, hexHeader+hexAnnotations+hexProperties+hexApplication+hexData)
	dst := make([]byte, 0, 4096)
	var reused struct {
		transfer    Transfer
		flow        Flow
		disposition Disposition
		properties  Properties
		message     Message
	}
	decode := func(c, into Composite) func() {
		b := Append(nil, c)
		return func() {
			if code, err := Peek(b); err != nil || code != Code(into) {
				tb.Fatal(code, err)
			}
			_, err := Decode(b, into)
			must(err)
		}
	}
	must(reused.message.Parse(message))
	return map[string]func(){
		"decode transfer":    decode(transfer, &reused.transfer),
		"decode flow":        decode(flow, &reused.flow),
		"decode disposition": decode(disposition, &reused.disposition),
		"decode modified":    decode(modified, &reused.disposition),
		"encode transfer":    func() { AppendTransfer(dst, 1, transfer, 100) },
		"encode flow":        func() { AppendFlow(dst, 1, flow) },
		"encode disposition": func() { AppendDisposition(dst, 1, disposition) },
		"encode modified":    func() { AppendDisposition(dst, 1, modified) },
		"encode heartbeat":   func() { AppendHeartbeat(dst) },
		"encode header":      func() { Append(dst, &Header{Durable: true, Priority: Some[byte](4)}) },
		"parse message":      func() { must(reused.message.Parse(message)) },
		"read properties":    func() { must(reused.message.ReadProperties(&reused.properties)) },
		"find annotation":    func() { reused.message.Annotations.Get("x-cc") },
		"append annotations": func() {
			EndMap(AppendUint(AppendSymbol(StartMap(dst), "x-opt-a"), 7), 0, 1)
		},
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	for name, do := range hotPaths(t) {
		if n := testing.AllocsPerRun(100, do); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// again gives the same octets again and again.
type again struct {
	stream []byte
	rest   []byte
}

func (a *again) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		a.rest = a.stream
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Reading a stream allocates the buffer of the Reader and nothing per frame.
func TestReadingDoesNotAllocate(t *testing.T) {
	r := NewReader(&again{stream: append(AppendTransfer(nil, 1, &Transfer{}, 1000), make([]byte, 1000)...)}, 4096)
	r.Expect(FrameAMQP, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := r.ReadFrame(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHotPaths(b *testing.B) {
	for name, do := range hotPaths(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do()
			}
		})
	}
}

func BenchmarkReadFrame(b *testing.B) {
	frame := append(AppendTransfer(nil, 1, &Transfer{}, 1000), make([]byte, 1000)...)
	r := NewReader(io.MultiReader(&again{stream: bytes.Repeat(frame, 10)}), 4096)
	r.Expect(FrameAMQP, 4096)
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		if _, err := r.ReadFrame(); err != nil {
			b.Fatal(err)
		}
	}
}
