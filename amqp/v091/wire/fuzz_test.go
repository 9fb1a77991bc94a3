package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"
	"unsafe"
)

// chunks gives what src has in reads of 1 to 64 octets, drawn from seed.
type chunks struct {
	src  *bytes.Reader
	seed uint64
}

func (c *chunks) Read(b []byte) (int, error) {
	c.seed = c.seed*6364136223846793005 + 1442695040888963407
	return c.src.Read(b[:min(len(b), 1+int(c.seed>>58))])
}

// readAll reads frames until an error. how chooses, bit by bit, the way in
// which each payload is read; a skipped one is nil.
func readAll(t *testing.T, r *Reader, how uint64) ([]Frame, error) {
	var frames []Frame
	for ; ; how = how>>2 | how<<62 {
		head, err := r.ReadFrameHeader()
		if err != nil {
			return frames, err
		}
		f := Frame{Type: head.Type, Channel: head.Channel}
		switch how & 3 {
		case 0, 1:
			f.Payload, err = r.ReadPayload()
			f.Payload = bytes.Clone(f.Payload)
		case 2:
			f.Payload = make([]byte, head.Size)
			err = r.ReadPayloadInto(f.Payload)
		case 3:
			err = r.SkipPayload()
		}
		if err != nil {
			return frames, err
		}
		if limit := int(r.maxFrame) + 64<<10; len(r.buf) > limit {
			t.Fatalf("a buffer of %d octets, at most %d are allowed", len(r.buf), limit)
		}
		frames = append(frames, f)
	}
}

// FuzzFrame: however the input is cut into reads and however payloads are
// read, the frames and the final error are the same; and encoding the frames
// gives back the input up to the error.
func FuzzFrame(f *testing.F) {
	for _, c := range goldenFrames {
		f.Add(mustHex(f, c.frame), uint64(1), uint64(0))
	}
	body := bytes.Repeat([]byte("0123456789"), 300)
	stream := AppendMethod(nil, 1, &BasicPublish{RoutingKey: "q"})
	stream = AppendHeader(stream, 1, ClassBasic, uint64(len(body)), []byte{0x10, 0, 2})
	stream = AppendHeartbeat(AppendBody(stream, 1, body, 1024))
	f.Add(stream, uint64(42), uint64(0xe4e4e4e4e4e4e4e4))
	f.Add(stream[:len(stream)-9], uint64(42), uint64(0xffff))
	for _, s := range []string{
		`01 0001 ffffffff`, `08 0001 00000000 ce`, `08 0000 00000001 61 ce`, `09 0000 00000003 616263 ce`,
		`01 0001 00000005 0014000a00 00`, `03 0001 00001001`, `03 0000 00000000 ce 03 0000 00000012 616263`,
	} {
		f.Add(mustHex(f, s), uint64(7), uint64(0xaaaa))
	}
	f.Fuzz(func(t *testing.T, in []byte, seed, how uint64) {
		const maxFrame = 4096
		want, wantErr := readAll(t, NewReader(bytes.NewReader(in), maxFrame), 0)
		got, err := readAll(t, NewReader(&chunks{bytes.NewReader(in), seed}, maxFrame), how)
		if !sameError(err, wantErr) || len(got) != len(want) {
			t.Fatalf("whole: %d frames, %v\ncut:   %d frames, %v", len(want), wantErr, len(got), err)
		}
		var encoded []byte
		for i, w := range want {
			if g := got[i]; g.Type != w.Type || g.Channel != w.Channel || g.Payload != nil && !bytes.Equal(g.Payload, w.Payload) {
				t.Fatalf("frame %d: %+v, want %+v", i, g, w)
			}
			encoded = AppendFrameStart(encoded, w.Type, w.Channel, uint32(len(w.Payload)))
			encoded = append(append(encoded, w.Payload...), FrameEnd)
		}
		if !bytes.HasPrefix(in, encoded) {
			t.Fatalf("frames % x\nare not the front of % x", encoded, in)
		}
		if wantErr == io.EOF && len(encoded) != len(in) {
			t.Fatalf("clean end, but %d octets are left", len(in)-len(encoded))
		}
	})
}

func sameError(a, b error) bool {
	var x, y *Error
	if errors.As(a, &x) && errors.As(b, &y) {
		return *x == *y
	}
	return a == b
}

// FuzzMethod: a payload is refused with a protocol error, or it has one
// canonical encoding that means the same. The decoders of hot methods agree
// with the general one.
func FuzzMethod(f *testing.F) {
	for _, id := range allIDs() {
		m := newMethod(id)
		f.Add(m.appendArgs(binary.BigEndian.AppendUint32(nil, id)))
	}
	for _, c := range goldenFrames {
		b := mustHex(f, c.frame)
		f.Add(b[frameHeadSize : len(b)-1])
	}
	for _, s := range []string{`0032000a 0000 02 fffe 00 00000000`, `00630063`, `0032000a 0000 01 71 00 00000004 01 61 5a 00`, `003c0028 abcd 01 65 01 6b fe`} {
		f.Add(mustHex(f, s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := DecodeMethod(payload)
		checkHotDecoders(t, payload, m, err)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || ReplyName(e.Code) == "" || len(e.Error()) > maxShortstr {
				t.Fatalf("err = %#v", err)
			}
			return
		}
		b := AppendMethod(nil, 1, m)
		canonical := mustReadFrame(t, b).Payload
		if len(canonical) > len(payload) {
			t.Fatalf("% x\ngrew to % x", payload, canonical)
		}
		again, err := DecodeMethod(canonical)
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("read %+v\nthen %+v, %v", m, again, err)
		}
		if !bytes.Equal(AppendMethod(nil, 1, again), b) {
			t.Fatal("the canonical form is not canonical")
		}
	})
}

func checkHotDecoders(t *testing.T, payload []byte, m Method, want error) {
	var got Method
	var err error
	switch PeekID(payload) {
	case IDBasicPublish:
		var v BasicPublishView
		err = DecodePublish(payload, &v)
		got = &BasicPublish{string(v.Exchange), string(v.RoutingKey), v.Mandatory, v.Immediate}
	case IDBasicAck:
		a := new(BasicAck)
		err, got = DecodeAck(payload, a), a
	case IDBasicNack:
		n := new(BasicNack)
		err, got = DecodeNack(payload, n), n
	case IDBasicReject:
		r := new(BasicReject)
		err, got = DecodeReject(payload, r), r
	default:
		return
	}
	if !sameError(err, want) || err == nil && !reflect.DeepEqual(got, m) {
		t.Fatalf("decoded %+v, %v\nwant    %+v, %v", got, err, m, want)
	}
}

// depth returns how many tables and arrays are around the deepest value.
func depth(v *Value) int {
	deepest := 0
	for i := range v.Table {
		deepest = max(deepest, depth(&v.Table[i].Value))
	}
	for i := range v.Array {
		deepest = max(deepest, depth(&v.Array[i]))
	}
	if v.Tag == TagTable || v.Tag == TagArray {
		deepest++
	}
	return deepest
}

// tableCost is how many octets of memory a table may take for each octet of its
// encoding: the worst is an array of voids, of one octet each.
const tableCost = 256

// footprint returns how much memory a value takes, the space of its slices that
// is not in use included.
func footprint(v *Value) int {
	n := len(v.Str) + cap(v.Table)*int(unsafe.Sizeof(Field{})) + cap(v.Array)*int(unsafe.Sizeof(Value{}))
	for i := range v.Table {
		n += len(v.Table[i].Name) + footprint(&v.Table[i].Value)
	}
	for i := range v.Array {
		n += footprint(&v.Array[i])
	}
	return n
}

// FuzzTable: fields are refused, or their canonical form has the same length
// and the same meaning; they take a bounded amount of memory. Names are found
// with and without decoding.
func FuzzTable(f *testing.F) {
	for _, c := range goldenValues {
		f.Add(append([]byte("\x01a"), mustHex(f, c.bytes)...))
	}
	f.Add([]byte{})
	f.Add(mustHex(f, `01 62 74 07  01 61 56  01 62 4c 0000000000000001  00 56`))
	f.Add(mustHex(f, `01 61 53 ffffffff 61`))
	f.Add(nested(64, TagTable))
	f.Add(nested(65, TagArray))
	f.Add(append(mustHex(f, `00 41 000003e8`), bytes.Repeat([]byte("V"), 1000)...))
	f.Add(bytes.Repeat([]byte("\x00V"), 1000))
	f.Fuzz(func(t *testing.T, in []byte) {
		table, err := DecodeFields(in)
		if err != nil {
			if !sameError(err, malformedTable()) {
				t.Fatalf("err = %v", err)
			}
			return
		}
		if n := depth(&Value{Tag: TagTable, Table: table}) - 1; n > maxTableDepth {
			t.Fatalf("nested %d deep", n)
		}
		if n := footprint(&Value{Tag: TagTable, Table: table}); n > tableCost*(len(in)+1) {
			t.Fatalf("%d octets take %d", len(in), n)
		}
		canonical := AppendFields(nil, table)
		if len(canonical) != len(in) {
			t.Fatalf("% x\nbecame % x", in, canonical)
		}
		again, err := DecodeTable(AppendTable(nil, table))
		if err != nil || !reflect.DeepEqual(again, table) {
			t.Fatalf("read %+v\nthen %+v, %v", table, again, err)
		}
		for _, field := range table[:min(len(table), 100)] {
			want, _ := table.Get(field.Name)
			if got, ok := LookupField(in, field.Name); !ok || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: looked up %+v, want %+v", field.Name, got, want)
			}
		}
	})
}

// FuzzProperties: a list is refused, or encodes to itself, byte for byte; and
// an edit does to it what it would do to the decoded headers.
func FuzzProperties(f *testing.F) {
	f.Add(mustHex(f, allProperties), "a", "x-death")
	f.Add([]byte{0, 0}, "", "")
	f.Add(withHeaders(Table{{"BCC", Array(String("a"))}, {"a", Int64(1)}, {"BCC", Bool(true)}}), "BCC", "a")
	f.Add(mustHex(f, `0001 0000`), "a", "b")
	f.Add(mustHex(f, `2000 00000004 01 61 5a 00`), "a", "b")
	f.Fuzz(func(t *testing.T, raw []byte, remove, set string) {
		p, err := ParseProperties(raw)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeSyntaxError {
				t.Fatalf("err = %v", err)
			}
			return
		}
		if b := AppendProperties(nil, &p); !bytes.Equal(b, raw) {
			t.Fatalf("% x\nbecame % x", raw, b)
		}
		if b, err := EditProperties(nil, raw, &Edit{}); err != nil || !bytes.Equal(b, raw) {
			t.Fatalf("% x\nedited to % x, %v", raw, b, err)
		}
		if len(set) > maxShortstr {
			return
		}
		checkEdit(t, raw, &p, &Edit{Remove: FlagExpiration, RemoveHeaders: []string{remove}, SetHeaders: Table{{set, Int64(1)}}})
	})
}

func checkEdit(t *testing.T, raw []byte, p *Properties, e *Edit) {
	b, err := EditProperties(nil, raw, e)
	if err != nil {
		t.Fatal(err)
	}
	headers, err := DecodeFields(p.Headers)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseProperties(b)
	if err != nil {
		t.Fatal(err)
	}
	edited, err := DecodeFields(got.Headers)
	if err != nil {
		t.Fatal(err)
	}
	if want := editSimply(headers, e); !reflect.DeepEqual(edited, want) {
		t.Fatalf("headers %+v\nwant    %+v", edited, want)
	}
	want := *p
	want.Present = p.Present&^FlagExpiration | FlagHeaders
	want.Expiration, want.Headers = nil, got.Headers
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("edited %+v\nwant   %+v", got, want)
	}
}
