package attack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// Values of AMQP 1.0 in one encoding each.
const (
	null10  = "\x40"
	true10  = "\x41"
	false10 = "\x42"
)

func number10(n uint32) string { return "\x70" + be32(n) }
func text10(s string) string   { return "\xb1" + be32(uint32(len(s))) + s }
func symbol10(s string) string { return "\xb3" + be32(uint32(len(s))) + s }
func binary10(s string) string { return "\xb0" + be32(uint32(len(s))) + s }

func be32(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// list10 is a list, and map10 a map of keys and values in turn.
func list10(values ...string) string { return "\xd0" + items10(values) }
func map10(values ...string) string  { return "\xd1" + items10(values) }

func items10(values []string) string {
	all := strings.Join(values, "")
	return be32(uint32(len(all)+4)) + be32(uint32(len(values))) + all
}

// composite10 is a list with a descriptor.
func composite10(code byte, fields ...string) string {
	return "\x00\x53" + string([]byte{code}) + list10(fields...)
}

// frame10 is a frame of a connection that is open.
func frame10(channel uint16, body string) string { return frameOf10(0, channel, body) }

func frameOf10(kind byte, channel uint16, body string) string {
	return be32(uint32(len(body)+8)) + string(binary.BigEndian.AppendUint16([]byte{2, kind}, channel)) + body
}

// Codes of performatives.
const (
	open10, begin10, attach10, flow10, transfer10, disposition10, detach10, end10, close10 = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18
)

const (
	saslHeader10 = "AMQP\x03\x01\x00\x00"
	header10     = "AMQP\x00\x01\x00\x00"
)

// login10 is all that a client sends until its session on channel 0 is open, without waiting for an answer; sasl10 is its
// first part.
var (
	sasl10  = saslHeader10 + frameOf10(1, 0, composite10(0x41, symbol10("PLAIN"), binary10("\x00guest\x00guest")))
	opens   = frame10(0, composite10(open10, text10("attacker")))
	login10 = sasl10 + header10 + opens + begins(0)
)

func begins(channel uint16) string {
	return frame10(channel, composite10(begin10, null10, number10(0), number10(1<<31-1), number10(1<<31-1)))
}

func ends(channel uint16) string { return frame10(channel, composite10(end10)) }

// sender and receiver are attaches on channel 0.
func sender(handle uint32, name, address string, more ...string) string {
	fields := []string{text10(name), number10(handle), false10, null10, null10, composite10(0x28), composite10(0x29, text10(address)), null10, null10, number10(0)}
	return frame10(0, composite10(attach10, append(fields, more...)...))
}

func receiver(handle uint32, name, address string) string {
	return frame10(0, composite10(attach10, text10(name), number10(handle), true10, null10, null10, composite10(0x28, text10(address)), composite10(0x29)))
}

func detaches(handle uint32) string {
	return frame10(0, composite10(detach10, number10(handle), true10))
}

// credit is a flow of a receiver.
func credit(handle, credit uint32) string {
	return frame10(0, composite10(flow10, number10(0), number10(1<<31-1), number10(0), number10(1<<31-1), number10(handle), number10(0), number10(credit)))
}

// transfer is a part of a message, on a link of channel 0.
func transfer(channel uint16, handle, id uint32, more bool, payload string) string {
	rest := false10
	if more {
		rest = true10
	}
	return frame10(channel, composite10(transfer10, number10(handle), number10(id), binary10("t"), number10(0), false10, rest)+payload)
}

// data10 is a message with a body.
func data10(body string) string { return "\x00\x53\x75" + binary10(body) }

// answer10 is a frame that a node has sent: what it is, and the condition that it names.
type answer10 struct {
	code      byte
	condition string
}

var condition10 = regexp.MustCompile("amqp:[a-z:-]+")

// read10 reads what a node sends after the login until it hangs up, and calls f for each frame. f true: that is enough.
func read10(conn net.Conn, f func(answer10) bool) error {
	in := bufio.NewReader(conn)
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	head := make([]byte, 8)
	for {
		if _, err := io.ReadFull(in, head); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if string(head[:4]) == "AMQP" {
			continue
		}
		size := binary.BigEndian.Uint32(head)
		if size < 8 || size > 16<<20 {
			return fmt.Errorf("a frame of %d octets", size)
		}
		body := make([]byte, size-8)
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		if len(body) < 3 || head[5] != 0 {
			continue // a heartbeat, or of the login
		}
		if f(answer10{body[2], string(condition10.Find(body))}) {
			return nil
		}
	}
}

// TestFrames10: what no client of AMQP 1.0 may send ends the connection, the session or the link with the condition
// that says what is wrong, and costs nobody else anything.
func TestFrames10(t *testing.T) {
	n := shared.mustGet(t).Nodes[2]
	deep := func(depth int) string {
		v := null10
		for range depth {
			v = list10(v)
		}
		return v
	}
	described := strings.Repeat("\x00", 100_000)
	array := func(count uint32, element, rest string) string {
		return "\xf0" + be32(uint32(4+len(element)+len(rest))) + be32(count) + element + rest
	}
	attachWith := func(properties string) string {
		return sender(0, "l", "/queues/none", null10, null10, null10, properties)
	}
	const framing, decode = "amqp:connection:framing-error", "amqp:decode-error"
	for name, test := range map[string]struct {
		sent string
		code byte
		want string
	}{
		"a size of 0":                               {be32(0) + "\x02\x00\x00\x00", close10, framing},
		"a size of 7":                               {be32(7) + "\x02\x00\x00\x00", close10, framing},
		"a size of 4 GiB":                           {be32(1<<32-1) + "\x02\x00\x00\x00", close10, framing},
		"a size of 1 MiB":                           {be32(1<<20) + "\x02\x00\x00\x00", close10, framing},
		"a data offset of 0":                        {be32(8) + "\x00\x00\x00\x00", close10, framing},
		"a data offset of 1":                        {be32(8) + "\x01\x00\x00\x00", close10, framing},
		"a data offset beyond the frame":            {be32(12) + "\xff\x00\x00\x00" + "\x00\x00\x00\x00", close10, framing},
		"a type of 9":                               {frameOf10(9, 0, ""), close10, framing},
		"a login after the login":                   {frameOf10(1, 0, composite10(0x41, symbol10("PLAIN"), binary10("\x00guest\x00guest"))), close10, framing},
		"a channel beyond the highest":              {begins(64), close10, framing},
		"no performative":                           {frame10(0, "\x40"), close10, decode},
		"a descriptor of nobody":                    {frame10(0, composite10(0x99)), close10, decode},
		"a list of 4 GiB":                           {frame10(0, "\x00\x53\x12\xd0\xff\xff\xff\xff\xff\xff\xff\xff"), close10, decode},
		"a list of 4 billion fields":                {frame10(0, "\x00\x53\x12\xd0\x00\x00\x00\x04\xff\xff\xff\xff"), close10, decode},
		"a text of 4 GiB":                           {frame10(0, "\x00\x53\x12\xd0\x00\x00\x00\x09\x00\x00\x00\x01\xb1\xff\xff\xff\xff"), close10, decode},
		"a map with a key and no value":             {attachWith(map10(symbol10("k"))), close10, decode},
		"a map of 4 billion":                        {attachWith("\xd1\x00\x00\x00\x04\xff\xff\xff\xff"), close10, decode},
		"an array of 4 billion nulls":               {attachWith(map10(symbol10("k"), array(1<<32-1, "\x40", ""))), close10, decode},
		"an array of 4 billion truths":              {attachWith(map10(symbol10("k"), array(1<<32-1, "\x41", ""))), close10, decode},
		"an array of 4 billion zeros":               {attachWith(map10(symbol10("k"), array(1<<32-1, "\x43", ""))), close10, decode},
		"an array of 4 billion lists":               {attachWith(map10(symbol10("k"), array(1<<32-1, "\x45", ""))), close10, decode},
		"an array of 4 billion numbers":             {attachWith(map10(symbol10("k"), array(1<<32-1, "\x70", "\x00\x00\x00\x01"))), close10, decode},
		"an array of 65,537 nulls":                  {attachWith(map10(symbol10("k"), array(1<<16+1, "\x40", ""))), close10, decode},
		"arrays of arrays of nothing":               {attachWith(map10(symbol10("k"), array(2, "\xf0", "\x00\x00\x00\x05\xff\xff\xff\xff\x40\x00\x00\x00\x05\xff\xff\xff\xff\x40"))), close10, decode},
		"10,000 lists in each other":                {attachWith(map10(symbol10("k"), deep(10_000))), close10, decode},
		"40 lists in each other":                    {attachWith(map10(symbol10("k"), deep(40))), close10, decode},
		"100,000 descriptors in each other":         {frame10(0, described), close10, decode},
		"a second open":                             {frame10(0, composite10(open10, text10("again"))), close10, "amqp:illegal-state"},
		"a second begin":                            {begins(0), end10, "amqp:illegal-state"},
		"a transfer of no link":                     {transfer(0, 5, 0, false, data10("x")), end10, "amqp:session:unattached-handle"},
		"a flow of no link":                         {credit(5, 1), end10, "amqp:session:unattached-handle"},
		"a flow of transfers that never came":       {frame10(0, composite10(flow10, number10(1<<31-1), number10(1), number10(0), number10(1))), end10, "amqp:session:window-violation"},
		"a handle beyond the highest":               {sender(256, "l", "/queues/none"), end10, framing},
		"annotations of 10,000 lists in each other": {sender(0, "l", "/exchanges/amq.fanout") + transfer(0, 0, 0, false, "\x00\x53\x72"+map10(symbol10("x-k"), deep(10_000))+data10("x")), detach10, decode},
		"a body of 10,000 lists in each other":      {sender(0, "l", "/exchanges/amq.fanout") + transfer(0, 0, 0, false, "\x00\x53\x77"+deep(10_000)), disposition10, ""}, // it is stored, and nobody decodes it
		"a message of no section":                   {sender(0, "l", "/exchanges/amq.fanout") + transfer(0, 0, 0, false, strings.Repeat("\xff", 1000)), detach10, decode},
		"a message with 4 billion annotations":      {sender(0, "l", "/exchanges/amq.fanout") + transfer(0, 0, 0, false, "\x00\x53\x72\xd1\x00\x00\x00\x04\xff\xff\xff\xff"+data10("x")), detach10, decode},
	} {
		attack(t, "frames", "1.0: "+name, func(t *testing.T) {
			conn := mustConnect10(t, n, login10+test.sent)
			told := false
			err := read10(conn, func(a answer10) bool {
				told = told || a == answer10{test.code, test.want}
				if a.code == close10 && !told {
					t.Errorf("closed with %s, want %#x with %s", a.condition, test.code, test.want)
				}
				return told || a.code == close10
			})
			if err != nil || !told && !t.Failed() {
				t.Errorf("not told %#x with %s: %v", test.code, test.want, err)
			}
			mustStay(t, n)
		})
	}
	// What is too long for a login is not read.
	for name, sent := range map[string]string{
		"a login of 9,000 octets":  saslHeader10 + frameOf10(1, 0, composite10(0x41, symbol10("PLAIN"), binary10(strings.Repeat("x", 9000)))),
		"an open of 9,000 octets":  sasl10 + header10 + frame10(0, composite10(open10, text10(strings.Repeat("x", 9000)))),
		"a login of 4 GiB":         saslHeader10 + be32(1<<32-1) + "\x02\x01\x00\x00",
		"a megabyte and no login":  saslHeader10 + strings.Repeat("x", 1<<20),
		"a begin and no open":      sasl10 + header10 + begins(0),
		"a performative, no login": saslHeader10 + frame10(0, composite10(open10, text10("x"))),
	} {
		attack(t, "frames", "1.0: "+name, func(t *testing.T) {
			conn := mustConnect10(t, n, sent)
			err := read10(conn, func(a answer10) bool {
				if a.code == begin10 {
					t.Error("a session is opened")
				}
				return false
			})
			if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
				t.Error("the node neither answers nor hangs up")
			}
			mustStay(t, n)
		})
	}
}

// mustConnect10 connects, and has all of it sent.
func mustConnect10(t *testing.T, n *cluster.Node, sent string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", n.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() { _, _ = io.WriteString(conn, sent) }() // the node may hang up meanwhile
	return conn
}
