package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFrameErrors(t *testing.T) {
	const maxFrame = 8192
	tooLarge := func(text string) Error { return Error{Code: 501, Text: text} }
	for _, c := range []struct {
		name, frame string
		want        Error
	}{
		{"one octet too large", `01 0001 00002001`, tooLarge("type 1, all octets = <<>>: {frame_too_large,8193,8184}")},
		{"4 GiB", `03 0001 ffffffff`, tooLarge("type 3, all octets = <<>>: {frame_too_large,4294967295,8184}")},
		{"unknown type and too large", `09 0000 00010000`, tooLarge("type 9, all octets = <<>>: {frame_too_large,65536,8184}")},
		{"wrong end", `01 0001 00000005 0014000a00 00`,
			Error{Code: 501, Text: "type 1, all octets = <<0,20,0,10,0>>: {invalid_frame_end_marker,0}"}},
		{"wrong end of nothing", `03 0001 00000000 cd`,
			Error{Code: 501, Text: "type 3, all octets = <<>>: {invalid_frame_end_marker,205}"}},
		{"wrong end of 16 octets", `03 0001 00000010 30313233343536373839616263646566 01`,
			Error{Code: 501, Text: `type 3, all octets = <<"0123456789abcdef">>: {invalid_frame_end_marker,1}`}},
		{"wrong end of 17 octets", `03 0001 00000011 3031323334353637383961626364656667 01`,
			Error{Code: 501, Text: `type 3, first 16 octets = <<"0123456789abcdef">>: {invalid_frame_end_marker,1}`}},
		{"unknown type", `09 0001 00000003 616263 ce`, Error{Code: 501, Text: `type 9, all octets = <<"abc">>: unknown_frame`}},
		{"unknown type, empty", `00 0000 00000000 ce`, Error{Code: 501, Text: `type 0, all octets = <<>>: unknown_frame`}},
		{"unknown type with a wrong end", `09 0001 00000003 616263 00`,
			Error{Code: 501, Text: `type 9, all octets = <<"abc">>: {invalid_frame_end_marker,0}`}},
		{"heartbeat with a payload", `08 0000 00000001 61 ce`, Error{Code: 501, Text: `type 8, all octets = <<"a">>: unknown_frame`}},
		{"heartbeat with a payload on a channel", `08 0001 00000001 61 ce`, Error{Code: 501, Text: `type 8, all octets = <<"a">>: unknown_frame`}},
		{"heartbeat on a channel", `08 0001 00000000 ce`, Error{Code: 505, Text: "type 8, all octets = <<>>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := bytes.NewReader(append(mustHex(t, c.frame), "behind the frame"...))
			r := NewReader(source, maxFrame)
			mustFail(t, second(r.ReadFrame()), c.want)
			left := source.Len()
			mustFail(t, second(r.ReadFrame()), c.want)
			mustFail(t, second(r.ReadFrameHeader()), c.want)
			mustFail(t, second(r.ReadPayload()), c.want)
			mustFail(t, r.SkipPayload(), c.want)
			if source.Len() != left {
				t.Error("something is read after a protocol error")
			}
		})
	}
}

// The text of a wrong end octet is the same whichever way the payload is read.
func TestFrameErrorsOfOtherWaysToRead(t *testing.T) {
	for _, size := range []int{0, 1, 16, 17, 18, readBuffer - 8, readBuffer, 3 * readBuffer} {
		payload := bytes.Repeat([]byte("x"), size)
		frame := append(AppendFrameStart(nil, FrameBody, 1, uint32(size)), payload...)
		frame = append(frame, 7)
		want := *frameError(FrameBody, payload, "{invalid_frame_end_marker,7}")

		r := NewReader(bytes.NewReader(frame), 1<<20)
		mustFail(t, second(r.ReadFrame()), want)
		r = mustReadHead(t, frame)
		mustFail(t, r.ReadPayloadInto(make([]byte, size)), want)
		r = mustReadHead(t, frame)
		mustFail(t, r.SkipPayload(), want)
	}
}

// mustReadHead returns a Reader of b that stands behind the first frame head.
func mustReadHead(t *testing.T, b []byte) *Reader {
	t.Helper()
	r := NewReader(bytes.NewReader(b), 1<<20)
	if _, err := r.ReadFrameHeader(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLargestFrame(t *testing.T) {
	for _, limit := range []uint32{4096, 8192, 131072} {
		frame := append(AppendFrameStart(nil, FrameBody, 1, limit), make([]byte, limit)...)
		r := NewReader(bytes.NewReader(append(frame, FrameEnd)), limit)
		if f, err := r.ReadFrame(); err != nil || len(f.Payload) != int(limit) {
			t.Errorf("a payload of %d: %d octets, %v", limit, len(f.Payload), err)
		}
	}
}

func TestSetMaxFrame(t *testing.T) {
	frame := append(AppendFrameStart(nil, FrameBody, 1, 100), make([]byte, 100)...)
	frame = append(frame, FrameEnd)
	r := NewReader(bytes.NewReader(append(append(frame[:len(frame):len(frame)], frame...), frame...)), 100)
	if _, err := r.ReadFrame(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadFrameHeader(); err != nil {
		t.Fatal(err)
	}
	r.SetMaxFrame(50) // the head that was read stays accepted
	if err := r.SkipPayload(); err != nil {
		t.Fatal(err)
	}
	mustFail(t, second(r.ReadFrame()), Error{Code: 501, Text: "type 3, all octets = <<>>: {frame_too_large,100,42}"})
}

// Memory follows what is allowed, never what is claimed, and goes back after
// an unusually large frame.
func TestReaderMemory(t *testing.T) {
	const limit = 131072
	var b []byte
	b = append(AppendFrameStart(b, FrameMethod, 1, limit), make([]byte, limit)...)
	b = append(b, FrameEnd)
	b = AppendHeartbeat(b)
	r := NewReader(iotest.OneByteReader(bytes.NewReader(b)), limit)
	if _, err := r.ReadFrame(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.buf); n > limit+1 {
		t.Errorf("a buffer of %d for a frame of %d", n, limit)
	}
	if _, err := r.ReadFrame(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.buf); n != readBuffer {
		t.Errorf("a buffer of %d for a heartbeat", n)
	}
}

// stutter returns an error before every read that gives something.
type stutter struct {
	src   io.Reader
	err   error
	ready bool
}

func (s *stutter) Read(b []byte) (int, error) {
	if s.ready = !s.ready; s.ready {
		return 0, s.err
	}
	return s.src.Read(b[:min(len(b), 1000)])
}

// A read that failed by a deadline goes on where it stopped.
func TestReadingGoesOnAfterAnError(t *testing.T) {
	errLate := errors.New("late")
	again := func(do func() error) {
		t.Helper()
		for range 1000 {
			if err := do(); err == nil {
				return
			} else if !errors.Is(err, errLate) {
				t.Fatal(err)
			}
		}
		t.Fatal("it never ends")
	}
	body := bytes.Repeat([]byte("0123456789"), 5000)
	var b []byte
	for range 3 {
		b = AppendBody(b, 1, body, 0)
	}
	r := NewReader(&stutter{src: bytes.NewReader(AppendHeartbeat(b)), err: errLate}, 1<<20)
	head := func() error { return second(r.ReadFrameHeader()) }

	again(head)
	var got []byte
	again(func() (err error) { got, err = r.ReadPayload(); return err })
	if !bytes.Equal(got, body) {
		t.Error("ReadPayload lost something")
	}
	again(head)
	into := make([]byte, len(body))
	again(func() error { return r.ReadPayloadInto(into) })
	if !bytes.Equal(into, body) {
		t.Error("ReadPayloadInto lost something")
	}
	again(head)
	again(r.SkipPayload)
	again(func() error {
		f, err := r.ReadFrame()
		if err == nil && f.Type != FrameHeartbeat {
			t.Errorf("then %+v", f)
		}
		return err
	})
}

func TestEndOfStream(t *testing.T) {
	frame := AppendMethod(nil, 1, &ChannelOpen{})
	for n := range len(frame) + 1 {
		want := io.ErrUnexpectedEOF
		if n == 0 || n == len(frame) {
			want = io.EOF
		}
		r := NewReader(bytes.NewReader(frame[:n]), 4096)
		_, err := r.ReadFrame()
		if n == len(frame) && err == nil {
			_, err = r.ReadFrame()
		}
		if err != want {
			t.Errorf("after %d octets: %v, want %v", n, err, want)
		}
	}
}

func TestSourceThatGivesNothing(t *testing.T) {
	r := NewReader(readerFunc(func([]byte) (int, error) { return 0, nil }), 4096)
	if _, err := r.ReadFrame(); err != io.ErrNoProgress {
		t.Errorf("err = %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestMisusePanics(t *testing.T) {
	for name, misuse := range map[string]func(){
		"payload without a head": func() { _, _ = NewReader(strings.NewReader("x"), 10).ReadPayload() },
		"slice of another size":  func() { _ = mustReadHead(t, AppendBody(nil, 1, []byte("abc"), 0)).ReadPayloadInto(make([]byte, 2)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			misuse()
		}()
	}
}

func TestAppendBody(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 1000)
	for _, c := range []struct {
		size     int
		frameMax uint32
		want     []int // sizes of the payloads
	}{
		{0, 4096, nil},
		{1, 4096, []int{1}},
		{4088, 4096, []int{4088}},
		{4089, 4096, []int{4088, 1}},
		{10000, 4096, []int{4088, 4088, 1824}},
		{10000, 131072, []int{10000}},
		{10000, 0, []int{10000}},
		{5000, 5, []int{4088, 912}},
	} {
		r := NewReader(bytes.NewReader(AppendBody(nil, 7, body[:c.size], c.frameMax)), 1<<20)
		var got []byte
		for _, want := range c.want {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if f.Type != FrameBody || f.Channel != 7 || len(f.Payload) != want {
				t.Errorf("%d in frames of %d: a frame of type %d, channel %d, %d octets, want %d",
					c.size, c.frameMax, f.Type, f.Channel, len(f.Payload), want)
			}
			got = append(got, f.Payload...)
		}
		if _, err := r.ReadFrame(); err != io.EOF || !bytes.Equal(got, body[:c.size]) {
			t.Errorf("%d in frames of %d: the body is another, or %v", c.size, c.frameMax, err)
		}
	}
}

func TestGoldenFrames(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"heartbeat", AppendHeartbeat(nil), `08 0000 00000000 ce`},
		{"body", AppendBody(nil, 258, []byte("abc"), 4096), `03 0102 00000003 616263 ce`},
		{"frame start", AppendFrameStart(nil, FrameBody, 258, 1<<24), `03 0102 01000000`},
		{"header", AppendHeader(nil, 258, ClassBasic, 1<<32, []byte{0x10, 0, 2}), `02 0102 0000000f 003c 0000 0000000100000000 1000 02 ce`},
		{"header without properties", AppendHeader(nil, 1, ClassBasic, 0, nil), `02 0001 0000000e 003c 0000 0000000000000000 0000 ce`},
	} {
		if !bytes.Equal(c.got, mustHex(t, c.want)) {
			t.Errorf("%s: % x, want %s", c.name, c.got, c.want)
		}
	}
}
