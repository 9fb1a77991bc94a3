package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/iotest"
)

// isError checks that err is a protocol error that a client can be told.
func isError(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Condition == "" || e.Description == "" || len(e.Description) > maxDescription {
		t.Fatalf("err = %#v", err)
	}
}

// FuzzFrame: however the input is cut into reads, the frames and the final error are the same.
func FuzzFrame(f *testing.F) {
	f.Add(append(AppendHeartbeat(nil), AppendFrame(nil, 7, &Begin{})...))
	f.Add(append(AppendTransfer(nil, 1, &Transfer{}, 5), "hello"...))
	for _, s := range []string{"00000010 03 00 0007 ffffffff 00 53 17 45", "00000007 02 00 0000", "ffffffff 02 00 0000", "00000008 03 00 0000", "00000008 02 01 0000"} {
		f.Add(mustHex(f, s))
	}
	for _, bodies := range recorded(f) {
		var stream []byte
		for _, b := range bodies {
			stream = append(binary.BigEndian.AppendUint32(stream, uint32(len(b)+8)), 2, 0, 0, 0)
			stream = append(stream, b...)
		}
		f.Add(stream)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		const maxFrame = 4096
		whole, cut := NewReader(bytes.NewReader(in), maxFrame), NewReader(iotest.OneByteReader(bytes.NewReader(in)), maxFrame)
		whole.Expect(FrameAMQP, maxFrame)
		cut.Expect(FrameAMQP, maxFrame)
		for {
			want, wantErr := whole.ReadFrame()
			got, err := cut.ReadFrame()
			if !reflect.DeepEqual(err, wantErr) || got.Channel != want.Channel || !bytes.Equal(got.Body, want.Body) {
				t.Fatalf("whole %+v, %v\ncut   %+v, %v", want, wantErr, got, err)
			}
			if len(whole.buf) > readBuffer {
				t.Fatalf("a buffer of %d octets", len(whole.buf))
			}
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return
			}
			if err != nil {
				isError(t, err)
				return
			}
		}
	})
}

// FuzzComposite: a body is refused with a protocol error, or what it says can be encoded and means the same.
func FuzzComposite(f *testing.F) {
	for _, c := range goldenBodies {
		f.Add(mustHex(f, c.bytes))
	}
	for _, c := range allComposites() {
		f.Add(Append(nil, c))
	}
	for _, bodies := range recorded(f) {
		for _, b := range bodies {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		code, err := Peek(in)
		if err != nil {
			isError(t, err)
			return
		}
		first := zero(code)
		rest, err := Decode(in, first)
		if err != nil {
			isError(t, err)
			return
		}
		if !bytes.HasSuffix(in, rest) {
			t.Fatalf("what is left is not the end of % x", in)
		}
		b := Append(nil, first)
		again := zero(code)
		if _, err := Decode(b, again); err != nil {
			// A state that is never sent is left out, and an empty one of many symbols or maps is none.
			t.Fatalf("% x\nbecame % x: %v", in, b, err)
		}
		if c := Append(nil, again); !bytes.Equal(b, c) {
			t.Fatalf("% x\nbecame % x\nthen   % x", in, b, c)
		}
	})
}

// FuzzValue: a value is refused, or every part of it can be read.
func FuzzValue(f *testing.F) {
	for _, s := range []string{
		"40", "c0[02 41 52 07]", "c1[02 a3[61] 52 07]", "e0[02 a3 01 61 01 62]", "f0{00000002 70 00000001 00000002}", "e0[02 00 53 24 50 01 02]",
		"00 a3[55524c] a1[78]", "00 00 53 01 53 02 41", "f0{00010000 40}", "e0[02 c0 02 01 41 02 01 42]", "e0[02 00 00 53 01 44 00 53 01 50 01 02]",
	} {
		f.Add(mustHex(f, s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v, rest, err := ReadValue(in)
		if err != nil {
			isError(t, err)
			return
		}
		if !bytes.HasSuffix(in, rest) {
			t.Fatalf("what is left is not the end of % x", in)
		}
		if n := elements(t, v, 0); n > maxEmptyElements*(len(in)+1) {
			t.Fatalf("%d octets have %d values", len(in), n)
		}
		if v.Type == Map {
			MapBytes(in[:len(in)-len(rest)]).Get("a")
		}
	})
}

// elements walks over all that is in a value.
func elements(t *testing.T, v Value, depth int) int {
	if v.Type == 0 || depth > maxMessageDepth+1 {
		t.Fatalf("a value of type %d, %d deep", v.Type, depth)
	}
	n := 1
	switch v.Type {
	case List, Map, Array, Described:
		w := v.Walk()
		for w.Next() {
			n += elements(t, w.Value, depth+1)
		}
		if len(w.rest) > 0 {
			t.Fatalf("%d octets behind the last element", len(w.rest))
		}
	}
	return n
}

// FuzzMessage: a message is refused, or its sections follow each other without a gap.
func FuzzMessage(f *testing.F) {
	head, bare := hexHeader+hexDelivery+hexAnnotations, hexProperties+hexApplication
	for _, s := range []string{
		head + bare + hexData + hexFooter, hexData + hexData, hexSequence, bare + hexValue, "00 53 77 00 53 01 00 a3[61] 45", hexProperties + hexHeader + hexData,
	} {
		f.Add(mustHex(f, s))
	}
	for _, m := range recordedMessages(f) {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m := new(Message)
		if err := m.Parse(in); err != nil {
			isError(t, err)
			return
		}
		if !bytes.HasSuffix(in, m.Bare) || !bytes.HasPrefix(m.Bare, m.Properties) || !bytes.HasSuffix(m.Bare, append(bytes.Clone(m.Body), m.Footer...)) {
			t.Fatalf("% x\nbare % x\nproperties % x\nbody % x\nfooter % x", in, m.Bare, m.Properties, m.Body, m.Footer)
		}
		size := 0
		for d := range m.Data {
			size += len(d)
		}
		if size > len(m.Body) {
			t.Fatalf("%d octets of data in a body of %d", size, len(m.Body))
		}
		if _, err := m.BodyValue(); err != nil {
			isError(t, err)
		}
		if err := m.ReadProperties(new(Properties)); err != nil {
			isError(t, err)
		}
	})
}

// What stock clients send is understood: a message of each kind from each, and what they do with it.
func TestRecorded(t *testing.T) {
	for name, bodies := range recorded(t) {
		kinds, states := map[BodyKind]int{}, map[Outcome]int{}
		for _, b := range bodies {
			if len(b) == 0 {
				continue
			}
			code, err := Peek(b)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			c := zero(code)
			rest, err := Decode(b, c)
			if err != nil {
				t.Fatalf("%s: % x: %v", name, b, err)
			}
			switch c := c.(type) {
			case *Transfer:
				kinds[mustParse(t, rest).Kind]++
			case *Disposition:
				if c.Role {
					states[c.State.Kind]++
				}
			}
		}
		if kinds[BodyData] != 1 || kinds[BodyValue] != 1 || kinds[BodySequence] != 1 || states[StateAccepted] != 1 || states[StateRejected] != 1 || states[StateModified] != 1 {
			t.Errorf("%s: messages %v, outcomes %v", name, kinds, states)
		}
	}
}
