package fsm

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// bareParts are the parts of a message of AMQP 1.0, as they lie in the log.
type bareParts struct {
	header            BareHeader
	annotations, bare string
	keys              []string
}

func (x bareParts) mustPayload(t testing.TB) Payload {
	t.Helper()
	p, err := AppendBareHead(nil, "x", "key", x.header, []byte(x.annotations), x.keys)
	if err != nil {
		t.Fatal(err)
	}
	return append(p, x.bare...)
}

var someBare = []bareParts{
	{BareHeader{false, -1, -1}, "", "", nil},
	{BareHeader{true, 0, 0}, "\xc1\x01\x00", "\x00\x53\x77\x40", nil},
	{BareHeader{true, 255, math.MaxUint32}, strings.Repeat("a", 1000), strings.Repeat("b", 70_000), []string{"", "blind"}},
	{BareHeader{false, 9, -1}, "", "bare", []string{"k"}},
	{BareHeader{true, -1, 1500}, "a", "bare", nil},
}

// What was stored comes back byte for byte, and for a reader of 0-9-1 there are no
// properties.
func TestBarePayload(t *testing.T) {
	for i, x := range someBare {
		p := x.mustPayload(t)
		if want := BareSize(1, 3, len(x.annotations), len(x.bare)) + BlindSize(x.keys); len(p) != want {
			t.Errorf("%d: %d bytes, not %d", i, len(p), want)
		}
		if !p.Valid() || !p.IsBare() || !bytes.Equal(Readable(p), p) {
			t.Fatalf("%d: valid %v, of AMQP 1.0 %v", i, p.Valid(), p.IsBare())
		}
		if p.BareHeader() != x.header || string(p.Annotations()) != x.annotations || string(p.Body()) != x.bare {
			t.Errorf("%d: %+v %q %q", i, p.BareHeader(), p.Annotations(), p.Body())
		}
		if string(p.Exchange()) != "x" || string(p.RoutingKey()) != "key" || !slices.Equal(p.BlindKeys(), x.keys) || len(p.Properties()) != 0 {
			t.Errorf("%d: %q %q %q %q", i, p.Exchange(), p.RoutingKey(), p.BlindKeys(), p.Properties())
		}
		if n := p.HeadSize(); len(p)-n != len(x.annotations)+bareHeaderSize+len(x.bare)+BlindSize(x.keys) {
			t.Errorf("%d: a head of %d bytes", i, n)
		}
		for n := range len(p) - len(x.bare) {
			if p[:n].Valid() {
				t.Errorf("%d: valid with %d bytes", i, n)
			}
		}
	}
	if p := Payload(AppendPayloadHead(nil, "x", "k", []byte{0, 0})); p.IsBare() {
		t.Error("a payload of 0-9-1 has the other form")
	}
	// What does not fit into the header counts as none, or not at all.
	odd, err := AppendBareHead(nil, "", "", BareHeader{Priority: 256, TTL: 1 << 32}, nil, nil)
	if h := Payload(odd).BareHeader(); err != nil || h != (BareHeader{Priority: -1, TTL: -1}) {
		t.Errorf("%+v, %v", h, err)
	}
	if p, err := AppendBareHead([]byte("before"), strings.Repeat("x", 256), "", BareHeader{}, nil, nil); !errors.Is(err, ErrHead) || string(p) != "before" {
		t.Errorf("%q, %v", p, err)
	}
	// Header values that are cut.
	if short := (Payload{0, 0, bareBit >> 24, 0, 0, bareHeaderSize - 1, 0, 0, 0, 0, 0, 0}); short.Valid() {
		t.Error("valid with a header of five bytes")
	}
}

// To store a message and to read it allocates nothing but the payload.
func TestBareAllocations(t *testing.T) {
	x := someBare[1]
	annotations, buffer := []byte(x.annotations), make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		p, err := AppendBareHead(buffer, "x", "key", x.header, annotations, nil)
		if err != nil || !Payload(p).Valid() || !Payload(p).IsBare() || Payload(p).BareHeader() != x.header || len(Payload(p).Annotations()) != len(annotations) {
			t.Error("not as it was")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzBare: whatever is valid can be taken apart, and put together again from its
// parts.
func FuzzBare(f *testing.F) {
	for _, x := range someBare {
		f.Add([]byte(x.mustPayload(f)))
	}
	f.Add([]byte{0, 0, 0xc0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Payload(b)
		if !p.Valid() || !p.IsBare() {
			return
		}
		again, err := AppendBareHead(nil, string(p.Exchange()), string(p.RoutingKey()), p.BareHeader(), p.Annotations(), p.BlindKeys())
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		q := Payload(append(again, p.Body()...))
		if !q.Valid() || q.BareHeader() != p.BareHeader() || !bytes.Equal(q.Annotations(), p.Annotations()) || !bytes.Equal(q.Body(), p.Body()) || !slices.Equal(q.BlindKeys(), p.BlindKeys()) {
			t.Errorf("%q became %q", b, q)
		}
	})
}

// A payload goes another way with what is in the place of its property list, in the form
// that it has.
func TestRepack(t *testing.T) {
	all := []Payload{append(AppendPayloadHead(nil, "x", "key", []byte("list")), "body"...), AppendPayloadHead(nil, "", "", nil)}
	for _, x := range someBare {
		all = append(all, x.mustPayload(t))
	}
	for i, p := range all {
		before := slices.Clone(p)
		out, err := p.Repack("other", "k2", p.List(), []string{"b1", "b2"})
		if err != nil || !out.Valid() || out.IsBare() != p.IsBare() || !bytes.Equal(out.Body(), p.Body()) || !bytes.Equal(out.List(), p.List()) {
			t.Errorf("%d: %q, %v", i, out, err)
			continue
		}
		if string(out.Exchange()) != "other" || string(out.RoutingKey()) != "k2" || !slices.Equal(out.BlindKeys(), []string{"b1", "b2"}) || cap(out) != len(out) {
			t.Errorf("%d: %q", i, out)
		}
		if again, err := out.Repack(string(p.Exchange()), string(p.RoutingKey()), out.List(), p.BlindKeys()); err != nil || !bytes.Equal(again, before) || !bytes.Equal(p, before) {
			t.Errorf("%d: %q, %v", i, again, err)
		}
		if _, err := p.Repack(strings.Repeat("x", 256), "", p.List(), nil); !errors.Is(err, ErrHead) {
			t.Errorf("%d: %v", i, err)
		}
	}
	h := BareHeader{Durable: true, Priority: 3, TTL: -1}
	out, err := all[len(all)-1].Repack("x", "k", AppendBareList(nil, h, []byte("a")), nil)
	if err != nil || out.BareHeader() != h || string(out.Annotations()) != "a" {
		t.Errorf("%+v %q, %v", out.BareHeader(), out.Annotations(), err)
	}
}
