package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestFrames(t *testing.T) {
	var b []byte
	b = AppendFrame(b, 0, &SASLOutcome{})
	b = append(b, "AMQP\x00\x01\x00\x00"...)
	b = AppendHeartbeat(b)
	b = AppendFrame(b, 3, &Begin{IncomingWindow: 1})
	b = append(AppendTransfer(b, 0x0102, &Transfer{Handle: 1}, 5), "hello"...)
	b = append(b, mustHex(t, "00000010 03 00 0007 ffffffff 00 53 17 45")...) // an extended header
	for name, src := range map[string]io.Reader{"whole": bytes.NewReader(b), "octets": iotest.OneByteReader(bytes.NewReader(b))} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(src, 64)
			mustBe(t, r, 0, mustHex(t, "00 53 44 c0[01 50 00]"))
			if h, err := r.ReadProtocolHeader(); err != nil || h != ProtocolHeader(0) {
				t.Fatalf("header % x, %v", h, err)
			}
			r.Expect(FrameAMQP, 64)
			mustBe(t, r, 0, nil)
			mustBe(t, r, 3, mustHex(t, "00 53 11 c0[05 40 43 52 01 43 43]"))
			mustBe(t, r, 0x0102, append(mustHex(t, "00 53 14 c0[01 52 01]"), "hello"...))
			mustBe(t, r, 7, mustHex(t, "00 53 17 45"))
			if _, err := r.ReadFrame(); err != io.EOF {
				t.Fatalf("err = %v", err)
			}
		})
	}
}

func mustBe(t *testing.T, r *Reader, channel uint16, body []byte) {
	t.Helper()
	f, err := r.ReadFrame()
	if err != nil || f.Channel != channel || !bytes.Equal(f.Body, body) {
		t.Fatalf("channel %d % x, %v\nwant channel %d % x", f.Channel, f.Body, err, channel, body)
	}
}

func TestRefusedFrames(t *testing.T) {
	for _, c := range []struct{ name, bytes, why string }{
		{"size 7", "00000007 02 00 0000", "frame size 7 is less than 8"},
		{"longer than allowed", "00000201 02 00 0000", "frame size 513 exceeds maximum frame size 512"},
		{"4 GiB", "ffffffff 02 00 0000", "frame size 4294967295 exceeds maximum frame size 512"},
		{"doff 1", "00000008 01 00 0000", "data offset 4 does not fit a frame of 8 octets"},
		{"doff beyond", "00000008 03 00 0000", "data offset 12 does not fit a frame of 8 octets"},
		{"type 9", "00000008 02 09 0000", "frame type 9, expected 0"},
		{"SASL", "00000008 02 01 0000", "frame type 1, expected 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewReader(bytes.NewReader(mustHex(t, c.bytes+"00000008 02 00 0000")), 64)
			r.Expect(FrameAMQP, 512)
			for range 2 {
				_, err := r.ReadFrame()
				mustFail(t, err, ConditionFraming, c.why)
			}
			if r.buf != nil {
				t.Error("it still has a buffer")
			}
		})
	}
}

// What is announced takes no memory, and a long frame's buffer does not stay.
func TestBufferOfReader(t *testing.T) {
	long := append(AppendTransfer(nil, 0, &Transfer{}, 100_000), make([]byte, 100_000)...)
	src := bytes.NewReader(append(append(long, AppendHeartbeat(nil)...), 0, 0, 0xff, 0xff, 2, 0, 0, 0))
	r := NewReader(src, 1<<17)
	r.Expect(FrameAMQP, 1<<17)
	for range 2 {
		if _, err := r.ReadFrame(); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.buf) != readBuffer {
		t.Errorf("a buffer of %d octets is kept", len(r.buf))
	}
	if _, err := r.ReadFrame(); err != io.ErrUnexpectedEOF {
		t.Errorf("err = %v", err)
	}
}

// flaky fails each second read with a timeout.
type flaky struct {
	src  io.Reader
	fail bool
}

var errTimeout = errors.New("timeout")

func (f *flaky) Read(b []byte) (int, error) {
	if f.fail = !f.fail; f.fail {
		return 0, errTimeout
	}
	return f.src.Read(b[:1])
}

func TestReaderContinuesAfterTimeout(t *testing.T) {
	r := NewReader(&flaky{src: bytes.NewReader(AppendFrame(nil, 5, &End{}))}, 512)
	r.Expect(FrameAMQP, 512)
	for range 100 {
		f, err := r.ReadFrame()
		if err == errTimeout {
			continue
		}
		if err != nil || f.Channel != 5 {
			t.Fatalf("%+v, %v", f, err)
		}
		return
	}
	t.Fatal("no frame")
}

// stuck returns neither bytes nor an error.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestReaderDoesNotSpin(t *testing.T) {
	if _, err := NewReader(stuck{}, 512).ReadFrame(); err != io.ErrNoProgress {
		t.Errorf("err = %v", err)
	}
}
