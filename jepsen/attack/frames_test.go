package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

// mustEndWith has a broker end something: the connection, or a channel, with one
// of the codes and a text that holds the words.
func mustEndWith(t *testing.T, r *client.Raw, connection bool, words string, codes ...int) {
	t.Helper()
	_, err := r.Expect(0)
	var closed *client.Closed
	if !errors.As(err, &closed) {
		t.Fatalf("want a close with %v, got %v", codes, err)
	}
	if closed.Connection != connection || !slices.Contains(codes, closed.Code) || !strings.Contains(closed.Text, words) {
		t.Errorf("%v (of the connection: %v), want %v %q (%v)", closed, closed.Connection, codes, words, connection)
	}
}

// mustHandshake sends the protocol header and reads start.
func mustHandshake(t *testing.T, n *cluster.Node) *client.Raw {
	t.Helper()
	r, err := client.Dial(t.Context(), n.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if err := r.Write([]byte(client.ProtocolHeader)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Expect(10<<16 | 10); err != nil {
		t.Fatal(err)
	}
	return r
}

// mustStay has a node take a message from somebody honest.
func mustStay(t *testing.T, n *cluster.Node) {
	t.Helper()
	r := raw(t, n)
	defer r.Close()
	if err := r.Declare("stays", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Expect(50<<16 | 11); err != nil {
		t.Fatal(err)
	}
}

// TestJunk: what is no header that is spoken is told one that is, in eight octets, and no more
// is read.
func TestJunk(t *testing.T) {
	n := shared.mustGet(t).Nodes[2]
	for name, sent := range map[string]string{
		"eight octets":       "\x01\x02\x03\x04\x05\x06\x07\x08",
		"zeros":              strings.Repeat("\x00", 8),
		"ones":               strings.Repeat("\xff", 8),
		"AMQP 0-8":           "AMQP\x01\x01\x08\x00",
		"AMQP 0-10":          "AMQP\x01\x01\x00\x0a",
		"AMQP 1.0, no login": header10,
		"AMQP 1.0 with TLS":  "AMQP\x02\x01\x00\x00",
		"AMQP 1.1":           "AMQP\x03\x01\x01\x00",
		"AMQP 3.1":           "AMQP\x00\x03\x01\x00",
		"TLS hello":          "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 500),
		"HTTP POST":          "POST /api/users HTTP/1.1\r\nHost: h\r\n\r\n",
		"SSH":                "SSH-2.0-OpenSSH_9.9\r\n",
		"MQTT":               "\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
		"STOMP":              "CONNECT\naccept-version:1.2\n\n\x00",
		"Redis":              "*1\r\n$4\r\nPING\r\n",
		"PostgreSQL":         "\x00\x00\x00\x08\x04\xd2\x16\x2f",
		"HTTP/2":             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a mebibyte":         strings.Repeat("A", 1<<20),
		"other case":         "amqp\x00\x00\x09\x01",
	} {
		attack(t, "frames", "instead of the header: "+name, func(t *testing.T) {
			r, err := client.Dial(t.Context(), n.AMQP)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			_ = r.Write([]byte(sent)) // the node may hang up meanwhile
			answer, err := r.Bytes(patience)
			// Of a client that has more to say the end may take the answer along.
			if long := len(sent) > 4096; err != nil || string(answer) != saslHeader10 && !(long && len(answer) == 0) {
				t.Errorf("%q, %v, want %q and the end", answer, err, saslHeader10)
			}
			mustStay(t, n)
		})
	}
	attack(t, "frames", "instead of the header: HTTP GET", func(t *testing.T) {
		r, err := client.Dial(t.Context(), n.AMQP)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.Write([]byte("GET /api/users HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		answer, err := r.Bytes(patience)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 Bad Request\r\n") {
			t.Errorf("%q, %v", answer, err)
		}
	})
}

// frameOf is a frame whose length and end may be wrong.
func frameOf(kind byte, channel uint16, length uint32, payload string, end ...byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	return append(append(binary.BigEndian.AppendUint32(b, length), payload...), end...)
}

// TestFrames: frames that cannot be.
func TestFrames(t *testing.T) {
	n := shared.mustGet(t).Nodes[2]
	const end = 0xCE
	for name, test := range map[string]struct {
		sent  []byte
		code  int
		words string
	}{
		"one octet more than 8192":  {frameOf(1, 0, 8193, ""), 501, "{frame_too_large,8193,8184}"},
		"131,072 octets":            {frameOf(1, 0, 131064, ""), 501, "{frame_too_large,131064,8184}"},
		"4 GiB":                     {frameOf(1, 0, 1<<32-1, ""), 501, "{frame_too_large,4294967295,8184}"},
		"the end is missing":        {frameOf(1, 0, 4, "\x00\x0a\x00\x0b", 0), 501, "{invalid_frame_end_marker,0}"},
		"an unknown type":           {frameOf(0, 0, 3, "abc", end), 501, "unknown_frame"},
		"a body":                    {frameOf(3, 0, 3, "abc", end), 505, "type 3"},
		"a header":                  {frameOf(2, 0, 3, "abc", end), 505, "type 2"},
		"another channel":           {frameOf(1, 7, 4, "\x00\x0a\x00\x0b", end), 505, "type 1"},
		"a heartbeat with a body":   {frameOf(8, 0, 3, "abc", end), 501, "unknown_frame"},
		"no method":                 {frameOf(1, 0, 0, "", end), 0, ""},
		"half a method":             {frameOf(1, 0, 2, "\x00\x0a", end), 0, ""},
		"start-ok without anything": {frameOf(1, 0, 4, "\x00\x0a\x00\x0b", end), 501, ""},
	} {
		attack(t, "frames", "before the login: "+name, func(t *testing.T) {
			r := mustHandshake(t, n)
			if err := r.Write(test.sent); err != nil {
				t.Fatal(err)
			}
			if test.code == 0 {
				mustEndWith(t, r, true, test.words, 501, 503, 504)
			} else {
				mustEndWith(t, r, true, test.words, test.code)
			}
			mustStay(t, n)
		})
	}
	for name, test := range map[string]struct {
		sent  []byte
		code  int
		words string
	}{
		"one octet too long":   {frameOf(3, 1, 131073, ""), 501, "{frame_too_large,131073,131064}"},
		"4 GiB":                {frameOf(3, 1, 1<<32-1, ""), 501, "{frame_too_large,4294967295,131064}"},
		"the end is missing":   {frameOf(1, 1, 4, "\x00\x3c\x00\x0a", 'x'), 501, "{invalid_frame_end_marker,120}"},
		"an unknown type":      {frameOf(4, 1, 3, "abc", end), 501, "unknown_frame"},
		"type 255":             {frameOf(255, 65535, 0, "", end), 501, "unknown_frame"},
		"a heartbeat, channel": {frameOf(8, 1, 0, "", end), 505, "type 8"},
		"a body, no method":    {frameOf(3, 1, 3, "abc", end), 505, "expected method frame, got non method frame instead"},
		"a header, no method":  {frameOf(2, 1, 14, string(contentHeader(3)), end), 505, "expected method frame, got non method frame instead"},
		"a body, channel 0":    {frameOf(3, 0, 3, "abc", end), 505, "type 3"},
		"a body, no channel":   {frameOf(3, 9, 3, "abc", end), 505, "expected method frame, got non method frame instead"},
	} {
		attack(t, "frames", "on a connection: "+name, func(t *testing.T) {
			r := raw(t, n)
			if err := r.Write(test.sent); err != nil {
				t.Fatal(err)
			}
			mustEndWith(t, r, true, test.words, test.code)
			mustStay(t, n)
		})
	}
}

// contentHeader announces a body of a size, without properties.
func contentHeader(size uint64) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, size), 0, 0)
}

// TestContents: messages that are not what they announce.
func TestContents(t *testing.T) {
	n := shared.mustGet(t).Nodes[2]
	type part struct {
		kind    byte
		payload []byte
	}
	head := func(size uint64) part { return part{client.FrameHeader, contentHeader(size)} }
	body := func(size int) part { return part{client.FrameBody, make([]byte, size)} }
	method := part{client.FrameMethod, []byte{0, 60, 0, 10, 0, 0, 0, 0, 0, 1, 0}} // basic.qos
	flags := func(properties ...byte) part {
		return part{client.FrameHeader, append(binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, 0), properties...)}
	}
	for name, test := range map[string]struct {
		parts      []part
		connection bool
		code       int
		words      string
	}{
		"a body without a header":          {[]part{body(3)}, true, 505, "expected content header for class 60, got non content header frame instead"},
		"a method instead of the header":   {[]part{method}, true, 505, "expected content header for class 60, got non content header frame instead"},
		"a method instead of the body":     {[]part{head(3), method}, true, 505, "expected content body, got non content body frame instead"},
		"a header instead of the body":     {[]part{head(3), head(3)}, true, 505, "expected content body, got non content body frame instead"},
		"a body that is too long":          {[]part{head(3), body(4)}, true, 501, "content body frame exceeds remaining content size"},
		"a body that is too long, later":   {[]part{head(6), body(3), body(100_000)}, true, 501, "content body frame exceeds remaining content size"},
		"a body more than announced":       {[]part{head(3), body(3), body(3)}, true, 505, "expected method frame, got non method frame instead"},
		"a body of an empty message":       {[]part{head(0), body(1)}, true, 505, "expected method frame, got non method frame instead"},
		"2^63 octets":                      {[]part{head(1 << 63)}, true, 501, "content body size 9223372036854775808 exceeds maximum allowed size 536870912"},
		"2^64-1 octets":                    {[]part{head(1<<64 - 1)}, true, 501, "exceeds maximum allowed size"},
		"one more than 16 MiB":             {[]part{head(16<<20 + 1)}, false, 406, "message size 16777217 is larger than configured max size 16777216"},
		"the header of another class":      {[]part{{client.FrameHeader, append([]byte{0, 50}, contentHeader(0)[2:]...)}}, true, 505, ""},
		"half a header":                    {[]part{{client.FrameHeader, contentHeader(3)[:7]}}, true, 501, ""},
		"no header at all":                 {[]part{{client.FrameHeader, nil}}, true, 501, ""},
		"properties that are not there":    {[]part{flags(0xff, 0xfc)}, true, 502, "malformed content properties"},
		"a short string longer than there": {[]part{flags(0x80, 0, 200, 'x')}, true, 502, "malformed content properties"},
		"octets behind the properties":     {[]part{flags(0, 0, 1, 2, 3)}, true, 502, "malformed content properties"},
		"headers longer than there":        {[]part{flags(0x20, 0, 0xff, 0xff, 0xff, 0xff)}, true, 502, "malformed field table"},
	} {
		attack(t, "frames", "content: "+name, func(t *testing.T) {
			r := raw(t, n)
			if err := r.Method(1, 60<<16|40, client.Join([]byte{0, 0}, client.ShortString(""), client.ShortString("nowhere"), []byte{0})); err != nil {
				t.Fatal(err)
			}
			for _, p := range test.parts {
				_ = r.Frame(p.kind, 1, p.payload) // the node may hang up meanwhile
			}
			mustEndWith(t, r, test.connection, test.words, test.code)
			mustStay(t, n)
		})
	}
}

// TestTables: tables that are too deep, too long, or none.
func TestTables(t *testing.T) {
	n := shared.mustGet(t).Nodes[2]
	deep := func(kind byte, levels int) []byte {
		var inner []byte
		for range levels {
			if kind == 'A' {
				inner = append([]byte{'A'}, client.LongString(string(inner))...)
			} else {
				inner = client.Field("", kind, client.LongString(string(inner))...)
			}
		}
		if kind == 'A' {
			return append(client.ShortString("a"), inner...)
		}
		return inner
	}
	size := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for name, fields := range map[string][]byte{
		"10,000 tables in each other":         deep('F', 10_000),
		"10,000 arrays in each other":         deep('A', 10_000),
		"65 levels":                           deep('F', 66),
		"a text of 4 GiB":                     client.Field("k", 'S', size(1<<32-1)...),
		"a text longer than the table":        client.Field("k", 'S', append(size(100), "short"...)...),
		"an array longer than the table":      client.Field("k", 'A', size(1<<31)...),
		"a table longer than the one it's in": client.Field("k", 'F', size(7)...),
		"a name longer than the table":        {200, 'k'},
		"a name without a value":              client.ShortString("k"),
		"a time cut short":                    client.Field("k", 'T', 1, 2, 3),
		"a decimal cut short":                 client.Field("k", 'D', 1, 2),
		"a number cut short":                  client.Field("k", 'l', 1),
		"an array with half a value":          client.Field("k", 'A', append(size(2), 'l', 1)...),
		"octets of 2^31":                      client.Field("k", 'x', size(1<<31)...),
	} {
		attack(t, "frames", "table: "+name, func(t *testing.T) {
			r := raw(t, n)
			if err := r.Declare("tables", fields); err != nil {
				t.Fatal(err)
			}
			mustEndWith(t, r, true, "", 501, 502)
			r = raw(t, n) // and so in a message
			if err := r.Publish("", "nowhere", append([]byte{0x20, 0}, client.LongString(string(fields))...), nil); err != nil {
				t.Fatal(err)
			}
			mustEndWith(t, r, true, "", 501, 502)
			mustStay(t, n)
		})
	}
	attack(t, "frames", "table: unknown types", func(t *testing.T) {
		for kind := range 256 {
			if bytes.IndexByte([]byte("tbBsuIilLfdDSxATFV"), byte(kind)) >= 0 {
				continue
			}
			r := raw(t, n)
			if err := r.Declare("tables", client.Field("k", byte(kind), 0, 0, 0, 0, 0, 0, 0, 0)); err != nil {
				t.Fatal(err)
			}
			mustEndWith(t, r, true, "malformed field table", 502)
			r.Close()
		}
	})
	for count, decoded := range map[string]bool{"4,000": true, "120,000": false} {
		attack(t, "frames", "table: "+count+" values of no width", func(t *testing.T) {
			values, err := strconv.Atoi(strings.ReplaceAll(count, ",", ""))
			if err != nil {
				t.Fatal(err)
			}
			r := raw(t, n)
			if err := r.Declare("tables", client.Field("k", 'A', client.LongString(strings.Repeat("V", values))...)); err != nil {
				t.Fatal(err)
			}
			if !decoded {
				mustEndWith(t, r, true, "malformed field table", 502)
			} else {
				mustEndWith(t, r, false, "arguments of queue 'tables' have ", 406)
			}
		})
	}
}

// everyMethod is all that the protocol has, class<<16 | method, and some it has not.
var everyMethod = func() (all []uint32) {
	for class, numbers := range map[uint32][]uint32{
		10: {10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 70, 71},
		20: {10, 11, 20, 21, 40, 41},
		40: {10, 11, 20, 21, 30, 31, 40, 51},
		50: {10, 11, 20, 21, 30, 31, 40, 41, 50, 51},
		60: {10, 11, 20, 21, 30, 31, 40, 50, 60, 70, 71, 72, 80, 90, 100, 110, 111, 120},
		85: {10, 11}, 90: {10, 11, 20, 21, 30, 31},
		0: {0}, 30: {10}, 99: {99}, 65535: {65535},
	} {
		for _, n := range numbers {
			all = append(all, class<<16|n)
		}
	}
	slices.Sort(all)
	return all
}()

// TestEveryMethod: every method, with nothing or with junk for arguments, in every
// state of a connection. The connection ends as the protocol says, or the method
// has a place there.
func TestEveryMethod(t *testing.T) {
	n := shared.mustGet(t).Nodes[2]
	tuned := func(t *testing.T) *client.Raw {
		r := mustHandshake(t, n)
		if err := r.Method(0, 10<<16|11, client.Join(client.LongString(""), client.ShortString("PLAIN"), client.LongString(plain("guest", "guest")), client.ShortString("en_US"))); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Expect(10<<16 | 30); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, state := range map[string]struct {
		enter   func(t *testing.T) *client.Raw
		channel uint16
		fits    []uint32 // those that may be answered otherwise
		codes   []int
	}{
		"before the login":         {func(t *testing.T) *client.Raw { return mustHandshake(t, n) }, 0, []uint32{10<<16 | 50}, []int{501, 502, 504}},
		"channel before the login": {func(t *testing.T) *client.Raw { return mustHandshake(t, n) }, 1, nil, []int{505}},
		"before tune-ok":           {tuned, 0, []uint32{10<<16 | 50}, []int{501, 502, 504}},
		"before open": {func(t *testing.T) *client.Raw {
			r := tuned(t)
			if err := r.TuneOK(client.DefaultTune); err != nil {
				t.Fatal(err)
			}
			return r
		}, 0, []uint32{10<<16 | 50, 10<<16 | 40}, []int{501, 502, 504}},
		"channel 0":             {func(t *testing.T) *client.Raw { return raw(t, n) }, 0, []uint32{10<<16 | 50, 10<<16 | 51, 10<<16 | 70}, []int{501, 502, 503, 504}},
		"channel that is shut":  {func(t *testing.T) *client.Raw { return raw(t, n) }, 2, []uint32{20<<16 | 10, 20<<16 | 41, 60<<16 | 31}, []int{501, 502, 503, 504}},
		"channel that is open":  {func(t *testing.T) *client.Raw { return raw(t, n) }, 1, nil, nil},
		"amid a message":        {func(t *testing.T) *client.Raw { return amid(t, n) }, 1, nil, []int{505}},
		"channel that has died": {func(t *testing.T) *client.Raw { return died(t, n) }, 1, nil, nil},
	} {
		attack(t, "frames", "every method: "+name, func(t *testing.T) {
			for _, id := range everyMethod {
				for _, args := range [][]byte{nil, bytes.Repeat([]byte{0xff}, 40)} {
					r := state.enter(t)
					if err := r.Method(state.channel, id, args); err != nil {
						t.Fatal(err)
					}
					what := fmt.Sprintf("%d,%d with %d octets", id>>16, id&0xffff, len(args))
					checkMethod(t, r, what, state.codes, state.codes == nil || slices.Contains(state.fits, id))
					r.Close()
				}
			}
			mustStay(t, n)
		})
	}
}

// checkMethod has a method end the connection with one of the codes. Where one
// may fit, the node goes on or ends it with any code there is.
func checkMethod(t *testing.T, r *client.Raw, what string, codes []int, fits bool) {
	t.Helper()
	if !fits {
		_, err := r.Expect(0)
		var closed *client.Closed
		if !errors.As(err, &closed) || !closed.Connection || !slices.Contains(codes, closed.Code) {
			t.Errorf("%s: %v, want one of %v", what, err, codes)
		}
		return
	}
	// The answer to a close, or to the opening of another channel, comes in any case.
	_ = r.Method(63, 20<<16|10, client.ShortString(""))
	for {
		kind, _, payload, err := r.Read()
		if err != nil {
			return // it has hung up, as a method may ask for
		}
		if kind != client.FrameMethod || len(payload) < 6 {
			continue
		}
		switch id := binary.BigEndian.Uint32(payload); id {
		case 20<<16 | 11, 10<<16 | 51:
			return
		case 10<<16 | 50:
			if code := binary.BigEndian.Uint16(payload[4:]); code < 320 || code > 541 || code == 541 {
				t.Errorf("%s: closed with %d", what, code)
			}
			return
		}
	}
}

// amid is a connection that has begun to publish.
func amid(t *testing.T, n *cluster.Node) *client.Raw {
	t.Helper()
	r := raw(t, n)
	if err := r.Method(1, 60<<16|40, client.Join([]byte{0, 0}, client.ShortString(""), client.ShortString("nowhere"), []byte{0})); err != nil {
		t.Fatal(err)
	}
	return r
}

// died is a connection whose channel the node has closed, which the client has
// not confirmed.
func died(t *testing.T, n *cluster.Node) *client.Raw {
	t.Helper()
	r := raw(t, n)
	if err := r.Method(1, 60<<16|80, []byte{0, 0, 0, 0, 0, 0, 0, 99, 0}); err != nil {
		t.Fatal(err)
	}
	mustEndWith(t, r, false, "unknown delivery tag 99", 406)
	return r
}
