package v091

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// TestContent assembles messages from body frames of random sizes.
func TestContent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := content{maxSize: 3 * eagerBody, maxList: 1000, user: "guest", replyName: func() string { return "reply" }}
	p := wire.Properties{Present: wire.FlagReplyTo | wire.FlagPriority, ReplyTo: []byte(fsm.ReplyQueue), Priority: 7}
	properties := wire.AppendProperties(nil, &p)
	for _, size := range []int{0, 1, 100, 5000, eagerBody, eagerBody + 1, 3 * eagerBody, 3*eagerBody + 1} {
		body := make([]byte, size)
		for i := range body {
			body[i] = byte(r.Uint32())
		}
		mustBegin(t, &c, &wire.BasicPublish{Exchange: "x", RoutingKey: "key"})
		ready, err := c.header(headerFrame(uint64(size), properties))
		must(t, err)
		skipped := size > 3*eagerBody
		if ready != (size == 0 || skipped) {
			t.Fatalf("%d octets: ready %v after the header", size, ready)
		}
		for rest := body; len(rest) > 0; {
			if !c.isPartial() {
				t.Fatalf("%d octets: %d are missing", size, len(rest))
			}
			n := min(len(rest), 1+r.IntN(size/3+1))
			ready, err = c.body(mustReadHead(t, rest[:n]), n)
			must(t, err)
			rest = rest[n:]
			if m := &c.request.message; !skipped && len(m.publish.Payload)+int(c.remaining) != c.total {
				t.Fatalf("%d octets, %d to come, of %d", len(m.publish.Payload), c.remaining, c.total)
			}
			if ready != (len(rest) == 0 && !skipped) {
				t.Fatalf("%d octets: ready %v with %d to come", size, ready, len(rest))
			}
		}
		if c.isPartial() || c.remaining != 0 {
			t.Fatalf("%d octets: %d still to come", size, c.remaining)
		}
		if m := &c.request.message.publish; !skipped {
			got, err := wire.ParseProperties(m.Payload.Properties())
			if must(t, err); string(got.ReplyTo) != "reply" || m.Priority != 7 || !m.WantsReply || !bytes.Equal(m.Payload.Body(), body) {
				t.Errorf("%d octets: %+v", size, m)
			}
		} else if m.Payload != nil {
			t.Errorf("%d octets are kept of a message that is refused", len(m.Payload))
		}
		c.release()
	}
}

// TestContentTooLong: a body frame beyond the announced size ends the connection.
func TestContentTooLong(t *testing.T) {
	c := content{maxSize: 100, maxList: 100}
	mustBegin(t, &c, &wire.BasicPublish{})
	if _, err := c.header(headerFrame(3, []byte{0, 0})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.body(nil, 4); err == nil {
		t.Error("4 octets of 3 are taken")
	}
	c.reset()
	if c.isPartial() || c.remaining != 0 {
		t.Error("something is left")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBegin(t *testing.T, c *content, m *wire.BasicPublish) {
	t.Helper()
	must(t, c.begin(framePayload(wire.AppendMethod(nil, 1, m))))
}

// framePayload takes a frame's payload out of it.
func framePayload(frame []byte) []byte { return frame[7 : len(frame)-1] }

func headerFrame(size uint64, properties []byte) []byte {
	return framePayload(wire.AppendHeader(nil, 1, wire.ClassBasic, size, properties))
}

// mustReadHead returns a reader of a body frame whose head has been read.
func mustReadHead(t *testing.T, body []byte) *wire.Reader {
	t.Helper()
	in := wire.NewReader(bytes.NewReader(wire.AppendBody(nil, 1, body, 1<<30)), 1<<30)
	_, err := in.ReadFrameHeader()
	must(t, err)
	return in
}
