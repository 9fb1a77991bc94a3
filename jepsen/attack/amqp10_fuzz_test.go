package attack

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/jepsen/cluster"
)

// fuzzFields10 are the fields of composites: s: a text, y: a symbol, Y: symbols, B: octets, i: a number of 32 bits,
// w, b, q: of 16, 8, 64, t: a truth, m: a map, a: an address, S, T: a source, a target, o: an outcome, e: an error.
var fuzzFields10 = map[byte]string{
	begin10: "wiiiiYYm", attach10: "sitbbSTmtiqYYm", flow10: "iiiiiiiittm", transfer10: "iiBittbottt",
	disposition10: "tiitot", detach10: "ite", end10: "e", close10: "e", open10: "ssiwiYYYYm",
	0x1d: "ysm", 0x23: "iq", 0x24: "", 0x25: "e", 0x26: "", 0x27: "ttm", 0x34: "Bo",
	0x28: "aiyitmymoYY", 0x29: "aiyitmY", 0x30: "Y", 0x70: "tbiti", 0x73: "sBassssyyqqsis",
}

// fuzzValue10 is a value of a kind, or sometimes none or another.
func fuzzValue10(r *rand.Rand, kind rune, depth int) string {
	switch n := r.IntN(400); {
	case n < 40:
		return null10
	case n < 42:
		kind = one(r, []rune("syYBiwbqtmaSToe")...)
	}
	if depth > 6 {
		return null10
	}
	switch kind {
	case 's':
		return text10(fuzzName(r))
	case 'a':
		return text10(one(r, "/queues/q1", "/queues/q2", "/queues/q3", "/queues/honest", "/exchanges/amq.topic/k", "/exchanges/amq.headers", "/exchanges/quorate.command/x",
			"/management", "/queues/", "q1", "/queues/%ff", "/queues/"+fuzzName(r), "/exchanges/"+fuzzName(r)+"/"+fuzzName(r)))
	case 'y':
		return symbol10(one(r, "amqp:released:list", "session-end", "never", "move", "copy", "x-k", fuzzName(r)))
	case 'Y':
		return "\xf0" + be32(9) + be32(1) + "\xa3" + "\x03x-y"
	case 'B':
		return binary10(string(bits(r, r.IntN(40))))
	case 'i':
		return number10(one(r, 0, 0, 0, 1, 1, 2, 3, 100, 255, 256, 1<<31-1, 1<<32-1, r.Uint32()))
	case 'w':
		return "\x60" + string(one(r, []byte{0, 0}, []byte{0, 1}, bits(r, 2)))
	case 'b':
		return "\x50" + string([]byte{one[byte](r, 0, 0, 1, 2, byte(r.Uint32()))})
	case 'q':
		return "\x80" + string(one(r, make([]byte, 8), []byte{0, 0, 0, 0, 0, 1, 0, 0}, bits(r, 8)))
	case 't':
		return one(r, true10, false10, false10)
	case 'm':
		return fuzzMap10(r, depth)
	case 'S':
		return fuzzComposite10(r, 0x28, depth)
	case 'T':
		return fuzzComposite10(r, one[byte](r, 0x29, 0x29, 0x29, 0x30), depth)
	case 'o':
		return fuzzComposite10(r, one[byte](r, 0x23, 0x24, 0x25, 0x26, 0x27, 0x34), depth)
	}
	return fuzzComposite10(r, 0x1d, depth)
}

// fuzzMap10 is a map as clients send it, or nearly.
func fuzzMap10(r *rand.Rand, depth int) string {
	var all []string
	for range r.IntN(4) {
		all = append(all,
			symbol10(one(r, "x-k", "x-cc", "x-opt-delivery-delay", "x-group", "rabbitmq:priority", "rabbitmq:consumer-timeout", "x-priority", "product", "durable", fuzzName(r))),
			fuzzValue10(r, one(r, []rune("syYBiwbqtm")...), depth+1))
	}
	return map10(all...)
}

// fuzzComposite10 is a composite, which may lack fields at its end.
func fuzzComposite10(r *rand.Rand, code byte, depth int) string {
	fields := fuzzFields10[code]
	if r.IntN(3) == 0 {
		fields = fields[:r.IntN(len(fields)+1)]
	}
	var all []string
	for _, kind := range fields {
		all = append(all, fuzzValue10(r, kind, depth+1))
	}
	return composite10(code, all...)
}

// fuzzMessage10 is a message, or nearly.
func fuzzMessage10(r *rand.Rand) string {
	var b strings.Builder
	for _, section := range []string{
		fuzzComposite10(r, 0x70, 0), "\x00\x53\x71" + fuzzMap10(r, 0), "\x00\x53\x72" + fuzzMap10(r, 0), fuzzComposite10(r, 0x73, 0), "\x00\x53\x74" + fuzzMap10(r, 0),
	} {
		if r.IntN(3) == 0 {
			b.WriteString(section)
		}
	}
	b.WriteString(one(r, data10("x"), data10(string(bits(r, r.IntN(500)))), "\x00\x53\x77"+fuzzValue10(r, 'm', 0), "\x00\x53\x76"+list10(null10), ""))
	return b.String()
}

// fuzzFrame10 is a frame that is nearly right, or a link that has one.
func fuzzFrame10(r *rand.Rand) (frames string, count int) {
	channel := one[uint16](r, 0, 0, 0, 0, 0, 1)
	if r.IntN(50) == 0 {
		channel = uint16(r.Uint32())
	}
	handle := one[uint32](r, 0, 0, 1, 2)
	body := ""
	switch r.IntN(20) {
	case 0:
		return detaches(handle) + sender(handle, "s", one(r, "/queues/q1", "/exchanges/amq.fanout", "/exchanges/amq.headers")), 2
	case 1:
		return detaches(handle) + receiver(handle, "r", one(r, "/queues/q1", "/queues/q2")) + credit(handle, one[uint32](r, 1, 10, 1000)), 3
	case 2:
		return ends(0) + begins(0), 2
	case 3:
		return begins(1), 1
	case 4, 5, 6, 7:
		return transfer(channel, handle, uint32(r.IntN(9)), r.IntN(4) == 0, fuzzMessage10(r)), 1
	case 8:
		body = fuzzComposite10(r, one(r, slices.Sorted(maps.Keys(fuzzFields10))...), 0)
	case 9:
		body = string(bits(r, r.IntN(60)))
	default:
		body = fuzzComposite10(r, one[byte](r, attach10, flow10, flow10, transfer10, disposition10, disposition10, detach10, begin10, end10), 0)
	}
	octets := []byte(body)
	switch r.IntN(60) {
	case 0:
		if len(octets) > 0 {
			octets[r.IntN(len(octets))] ^= 1 << r.IntN(8)
		}
	case 1:
		octets = octets[:r.IntN(len(octets)+1)]
	}
	frame := []byte(frame10(channel, string(octets)))
	if r.IntN(200) == 0 {
		frame[r.IntN(8)] ^= 1 << r.IntN(8)
	}
	return string(frame), 1
}

// TestFuzzedFrames10: whatever frames of AMQP 1.0 somebody who has logged in sends, the node says what is wrong, or ends
// the connection, and goes on. -attack.frames 1000000 is a long run.
func TestFuzzedFrames10(t *testing.T) {
	t.Parallel()
	attack(t, "fuzz", "frames of AMQP 1.0", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		ch, end := mustChannel(t, n, "")
		for _, name := range []string{"q1", "q2", "q3"} {
			if _, err := ch.QueueDeclare(name, true, false, false, false, map[string]any{"x-max-length": int32(1000)}); err != nil {
				t.Fatal(err)
			}
		}
		end()
		const each = 32
		var mu sync.Mutex
		told, sent := map[string]int{}, 0
		fuzz(t, n, *fuzzFrames/each, func(r *rand.Rand) error {
			conn, err := net.Dial("tcp", n.AMQP)
			if err != nil {
				return err
			}
			defer conn.Close()
			all := login10
			for count := 0; count < each; {
				b, more := fuzzFrame10(r)
				all, count = all+b, count+more
			}
			_, _ = io.WriteString(conn, all)     // the node may hang up meanwhile
			_ = conn.(*net.TCPConn).CloseWrite() // likewise
			internal := false
			err = read10(conn, func(a answer10) bool {
				if a.condition != "" {
					mu.Lock()
					told[fmt.Sprintf("%#x %s", a.code, a.condition)]++
					mu.Unlock()
				}
				internal = internal || a.condition == "amqp:internal-error"
				return false
			})
			mu.Lock()
			sent += each
			mu.Unlock()
			late, ok := errors.AsType[net.Error](err)
			switch {
			case internal:
				return errors.New("amqp:internal-error")
			case ok && late.Timeout():
				return errors.New("the node neither answers nor hangs up")
			}
			return nil
		})
		t.Logf("%d frames; told %v", sent, told)
	})
}
