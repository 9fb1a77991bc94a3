package attack

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

var (
	fuzzFrames   = flag.Int("attack.frames", 4000, "how many frames TestFuzzedFrames sends")
	fuzzRequests = flag.Int("attack.requests", 600, "how many requests TestFuzzedRequests makes")
	fuzzSeed     = flag.Uint64("attack.seed", 1, "of both")
)

const (
	fuzzers  = 4 // at a time
	frameEnd = 0xCE
)

// fuzz has the fuzzers do n pieces of work, each with a source of chance of its own, and checks that the node has not
// panicked and that its memory is flat: what is resident after a tenth of the work, when every buffer has been used,
// grows by no more than flat.
func fuzz(t *testing.T, n *cluster.Node, pieces int, work func(r *rand.Rand) error) {
	const flat = 128 * mib
	t.Helper()
	began := time.Now()
	var done, early atomic.Int64
	var all sync.WaitGroup
	for i := range uint64(fuzzers) {
		all.Go(func() {
			for {
				at := done.Add(1)
				if at > int64(pieces) || t.Failed() {
					return
				}
				if err := work(rand.New(rand.NewPCG(*fuzzSeed, uint64(at)))); err != nil {
					t.Errorf("seed %d, piece %d of fuzzer %d: %v", *fuzzSeed, at, i, err)
				}
				if at == int64(pieces/10) {
					now, err := n.RSSBytes()
					if err != nil {
						t.Error(err)
					}
					early.Store(now)
				}
			}
		})
	}
	all.Wait()
	rss, err := n.RSSBytes()
	if err != nil {
		t.Fatalf("the node has ended: %v", err)
	}
	peak, err := n.PeakRSSBytes()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v; resident after a tenth %d MiB, at the end %d MiB, at most %d MiB", time.Since(began).Round(time.Second), early.Load()/mib, rss/mib, peak/mib)
	if rss > early.Load()+flat {
		t.Errorf("memory grows: %d MiB after a tenth, %d MiB at the end", early.Load()/mib, rss/mib)
	}
	if p := gauge(t, n, "quorate_panics_total"); p != 0 {
		t.Errorf("%d panics", p)
	}
	mustConfirm(t, n, 1)
}

// one returns one of some things.
func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// bits is something random.
func bits(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// fuzzName is the name of something that may be there, or of nothing that can be.
func fuzzName(r *rand.Rand) string {
	return one(r, "q1", "q2", "q3", "q4", "x1", "x2", "", "amq.direct", "amq.topic", "amq.headers", "quorate.command", "amq.rabbitmq.reply-to", "ü", string(bits(r, r.IntN(200))))
}

// fuzzTable is a table as a method has it.
func fuzzTable(r *rand.Rand) []byte {
	var fields []byte
	for range r.IntN(4) {
		name := one(r, "x-queue-type", "x-message-ttl", "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-expires", "x-priority", "x-match", "x-delay", "alternate-exchange", "x-delayed-type", "CC", "k")
		kind := one[byte](r, 't', 'b', 'B', 's', 'u', 'I', 'i', 'l', 'f', 'd', 'D', 'S', 'A', 'T', 'F', 'V', 'x', byte(r.Uint32()))
		size := map[byte]int{'t': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'l': 8, 'f': 4, 'd': 8, 'D': 5, 'T': 8}[kind]
		value := bits(r, size)
		if strings.ContainsRune("SAFx", rune(kind)) {
			value = client.LongString(one(r, "quorum", "classic", "direct", "reject-publish", string(bits(r, r.IntN(30)))))
		}
		fields = append(fields, client.Field(name, kind, value...)...)
	}
	return client.LongString(string(fields))
}

// fuzzArguments are what each method's arguments consist of: s: a name, S: a long text, t: a table, b, w, d, q: 1, 2, 4 or
// 8 octets.
var fuzzArguments = map[uint32]string{
	10<<16 | 11: "tsSs", 10<<16 | 31: "wdw", 10<<16 | 40: "ssb", 10<<16 | 50: "wsww", 10<<16 | 51: "", 10<<16 | 70: "Ss",
	20<<16 | 10: "s", 20<<16 | 20: "b", 20<<16 | 40: "wsww", 20<<16 | 41: "",
	40<<16 | 10: "wssbt", 40<<16 | 20: "wsb", 40<<16 | 30: "wsssbt", 40<<16 | 40: "wsssbt",
	50<<16 | 10: "wsbt", 50<<16 | 20: "wsssbt", 50<<16 | 30: "wsb", 50<<16 | 40: "wsb", 50<<16 | 50: "wssst",
	60<<16 | 10: "dwb", 60<<16 | 20: "wssbt", 60<<16 | 30: "sb", 60<<16 | 40: "wssb", 60<<16 | 70: "wsb", 60<<16 | 80: "qb", 60<<16 | 90: "qb", 60<<16 | 100: "b", 60<<16 | 110: "b", 60<<16 | 120: "qb",
	85<<16 | 10: "b", 90<<16 | 10: "", 90<<16 | 20: "", 90<<16 | 30: "", 30<<16 | 10: "sbbbbb",
}

// fuzzMethods are in order: those of the connection come first.
var fuzzMethods = slices.Sorted(maps.Keys(fuzzArguments))

// fuzzMethod is a method frame that could be right.
func fuzzMethod(r *rand.Rand, method uint32) []byte {
	payload := binary.BigEndian.AppendUint32(nil, method)
	for _, kind := range fuzzArguments[method] {
		switch kind {
		case 's':
			payload = append(payload, client.ShortString(fuzzName(r))...)
		case 'S':
			payload = append(payload, client.LongString(fuzzName(r))...)
		case 't':
			payload = append(payload, fuzzTable(r)...)
		case 'b':
			payload = append(payload, one[byte](r, 0, 1, 2, 3, 8, byte(r.Uint32())))
		case 'w':
			payload = append(payload, one(r, []byte{0, 0}, []byte{0, 1}, bits(r, 2))...)
		case 'd':
			payload = append(payload, one(r, make([]byte, 4), bits(r, 4))...)
		case 'q':
			payload = append(payload, one(r, make([]byte, 8), []byte{0, 0, 0, 0, 0, 0, 0, 1}, bits(r, 8))...)
		}
	}
	return payload
}

// fuzzFrame is a frame that is nearly right, or a message of several: how many there are is returned as well.
func fuzzFrame(r *rand.Rand) (frames []byte, count int) {
	channel := uint16(1 + r.IntN(3))
	if r.IntN(50) == 0 {
		channel = one(r, 0, uint16(r.Uint32()))
	}
	kind, payload := byte(client.FrameMethod), []byte(nil)
	switch r.IntN(24) {
	case 0, 1, 2: // a message
		body := bits(r, r.IntN(300))
		properties := one(r, []byte{0, 0}, []byte{0x10, 0, 2}, append([]byte{0x20, 0}, fuzzTable(r)...), bits(r, r.IntN(20)))
		header := append(binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(len(body)+one(r, 0, 0, 0, 0, 1, -1))), properties...)
		publish := fuzzMethod(r, 60<<16|40)
		return client.Join(
			frameOf(client.FrameMethod, channel, uint32(len(publish)), string(publish), frameEnd),
			frameOf(client.FrameHeader, channel, uint32(len(header)), string(header), frameEnd),
			frameOf(client.FrameBody, channel, uint32(len(body)), string(body), frameEnd)), 3
	case 3: // a channel that has been closed is opened again
		return client.Join(frameOf(client.FrameMethod, channel, 4, "\x00\x14\x00\x29", frameEnd), frameOf(client.FrameMethod, channel, 5, "\x00\x14\x00\x0a\x00", frameEnd)), 2
	case 4:
		kind, payload = one[byte](r, client.FrameHeader, client.FrameBody, 8, byte(r.Uint32())), bits(r, r.IntN(40))
	case 5:
		payload = fuzzMethod(r, one(r, fuzzMethods...))
		payload[r.IntN(len(payload))] ^= 1 << r.IntN(8)
	case 6:
		payload = fuzzMethod(r, one(r, fuzzMethods...))
		payload = payload[:r.IntN(len(payload)+1)]
	default:
		payload = fuzzMethod(r, one(r, fuzzMethods[6:]...)) // of a channel
	}
	length, end := uint32(len(payload)), byte(frameEnd)
	switch r.IntN(200) {
	case 0:
		length = r.Uint32()
	case 1:
		end = byte(r.Uint32())
	}
	return frameOf(kind, channel, length, string(payload), end), 1
}

// TestFuzzedFrames: whatever frames somebody who has logged in sends, the node ends the connection with a code
// that says what is wrong, and goes on. -attack.frames 1000000 is a long run.
func TestFuzzedFrames(t *testing.T) {
	t.Parallel()
	attack(t, "fuzz", "frames", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		const each = 32
		var sent atomic.Int64
		ends := make([]atomic.Int64, 600)
		fuzz(t, n, *fuzzFrames/each, func(r *rand.Rand) error {
			conn, err := net.Dial("tcp", n.AMQP)
			if err != nil {
				return err
			}
			defer conn.Close()
			raw := client.NewRaw(conn)
			if err := raw.Login("/", client.DefaultTune); err != nil {
				return err
			}
			for channel := uint16(1); channel <= 3; channel++ {
				if err := raw.OpenChannel(channel); err != nil {
					return err
				}
			}
			var all []byte
			for count := 0; count < each; {
				b, more := fuzzFrame(r)
				all, count = append(all, b...), count+more
			}
			sent.Add(each)
			_ = raw.Write(all)                   // the node may hang up meanwhile
			_ = conn.(*net.TCPConn).CloseWrite() // likewise
			for {
				_, err := raw.Expect(0)
				var closed *client.Closed
				switch late, ok := errors.AsType[net.Error](err); {
				case ok && late.Timeout():
					return errors.New("the node neither answers nor hangs up")
				case !errors.As(err, &closed):
					return nil
				}
				ends[min(closed.Code, 599)].Add(1)
				if closed.Code == 541 {
					return closed
				}
			}
		})
		var codes []string
		for code := range ends {
			if k := ends[code].Load(); k > 0 {
				codes = append(codes, fmt.Sprintf("%d: %d", code, k))
			}
		}
		t.Logf("%d frames; closed with %s", sent.Load(), strings.Join(codes, ", "))
	})
}

// harmful are requests that end what is to be tested, as they should: they take guest its rights, or publishers
// the right to publish, or the node its service.
func harmful(method, path string) bool {
	return method != http.MethodGet && (strings.Contains(path, "guest") || strings.HasPrefix(path, "/api/quorate/limits/") ||
		path == "/api/quorate/drain" || path == "/api/users/bulk-delete" || method == http.MethodDelete && path == "/api/vhosts/%2F" ||
		strings.Contains(path, "imits/%2F") || strings.HasPrefix(path, "/api/quorate/settings/"))
}

// fuzzJSON is a value, or something that is none.
func fuzzJSON(r *rand.Rand) string {
	value := func() string {
		return one(r, "1", "-1", "0", "1e400", "99999999999999999999", "true", "null", `""`, `"q1"`, `"x1"`, `"quorum"`, `"direct"`, `"auto"`, `"ack_requeue_true"`, `"all"`, `"administrator"`, `".*"`, `"("`, `"\u0000"`, `"\ud800"`, "[]", "{}", `["a",1]`, `{"a":{"b":[null]}}`)
	}
	switch r.IntN(10) {
	case 0:
		return string(bits(r, r.IntN(100)))
	case 1:
		return value()
	case 2:
		return strings.Repeat("[", 1+r.IntN(10_000))
	}
	keys := []string{
		"name", "durable", "auto_delete", "arguments", "type", "internal", "count", "ackmode", "encoding", "truncate", "properties", "routing_key", "payload", "payload_encoding", "pattern", "definition",
		"priority", "apply-to", "value", "password", "password_hash", "hashing_algorithm", "tags", "configure", "write", "read", "exchange", "queues", "exchanges", "bindings", "users", "vhosts", "permissions",
		"policies", "parameters", "action", "node", "delay", "at", "outcome", "duration", "ids", "limit", "description", "target_size", "strategy", "vhost_pattern", "queue_pattern",
	}
	var b strings.Builder
	b.WriteByte('{')
	for i := range r.IntN(8) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", one(r, keys...), value())
	}
	b.WriteByte('}')
	text := b.String()
	if r.IntN(10) == 0 {
		text = text[:r.IntN(len(text)+1)]
	}
	return text
}

// fuzzURL is a request of a route with values in place of its parameters.
func fuzzURL(r *rand.Rand, route string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(route, "/"), "/") {
		if b.WriteByte('/'); strings.HasPrefix(part, "{") {
			part = url.PathEscape(one(r, "/", "/", "q1", "q1", "q2", "x1", "amq.direct", "n1", "guest", "1", "-1", "~", "max-length", "operator_policy", ".", "..", "a/b", "%", string(bits(r, r.IntN(20)))))
		}
		b.WriteString(part)
	}
	if r.IntN(3) == 0 {
		q := url.Values{}
		for range 1 + r.IntN(3) {
			q.Set(one(r, "page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns", "pagination", "limit", "after", "state", "truncate", "encoding", "headers", "lengths_age", "lengths_incr", "msg_rates_age", "if-empty", "if-unused", "at", "id"),
				one(r, "1", "0", "-1", "99999999999999999999", "true", "name", "(", "ready", "auto", "..", string(bits(r, r.IntN(20)))))
		}
		b.WriteString("?" + q.Encode())
	}
	return b.String()
}

// TestFuzzedRequests: whatever an administrator asks for, no answer is a 500, and each is JSON where it says so.
// -attack.requests 100000 is a long run.
func TestFuzzedRequests(t *testing.T) {
	t.Parallel()
	attack(t, "fuzz", "requests", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		var doc struct {
			Paths map[string]map[string]json.RawMessage
		}
		if err := n.Call(t.Context(), http.MethodGet, "/api/openapi.json", nil, &doc); err != nil {
			t.Fatal(err)
		}
		routes := slices.Sorted(maps.Keys(doc.Paths))
		if len(routes) < 100 {
			t.Fatalf("the node names %d routes", len(routes))
		}
		for what, body := range map[string]string{"queues/%2F/q1": "{}", "queues/%2F/q2": `{"arguments":{"x-queue-type":"classic"}}`, "exchanges/%2F/x1": `{"type":"topic"}`} {
			if err := n.Call(t.Context(), http.MethodPut, "/api/"+what, []byte(body), nil); err != nil {
				t.Fatal(err)
			}
		}
		web := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: fuzzers}}
		defer web.CloseIdleConnections()
		classes := make([]atomic.Int64, 6)
		fuzz(t, n, *fuzzRequests, func(r *rand.Rand) error {
			route := one(r, routes...)
			method := strings.ToUpper(one(r, slices.Sorted(maps.Keys(doc.Paths[route]))...))
			if r.IntN(10) == 0 {
				method = one(r, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW")
			}
			target := fuzzURL(r, route)
			if path, _, _ := strings.Cut(target, "?"); harmful(method, path) {
				return nil
			}
			var body io.Reader
			if method != "GET" && method != "HEAD" {
				body = strings.NewReader(fuzzJSON(r))
			}
			q, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.HTTP+target, body)
			if err != nil {
				return err
			}
			q.SetBasicAuth("guest", "guest")
			if body != nil && r.IntN(20) > 0 {
				q.Header.Set("Content-Type", "application/json")
			}
			if r.IntN(20) == 0 {
				q.Header.Set(one(r, "Accept", "Accept-Encoding", "X-Reason", "Range", "If-None-Match", "Content-Encoding"), one(r, "gzip", "*/*;q=2", "bytes=5-1", "x"))
			}
			res, err := web.Do(q)
			if err != nil {
				return fmt.Errorf("%s %s: %w", method, target, err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			classes[min(res.StatusCode/100, 5)].Add(1)
			switch {
			case err != nil:
				return fmt.Errorf("%s %s: %w", method, target, err)
			case res.StatusCode == http.StatusInternalServerError:
				return fmt.Errorf("%s %s: %d %.300s", method, target, res.StatusCode, text)
			case method != "HEAD" && res.Header.Get("Content-Type") == "application/json" && len(text) > 0 && !json.Valid(text):
				return fmt.Errorf("%s %s: %d is no JSON: %.300s", method, target, res.StatusCode, text)
			}
			return nil
		})
		t.Logf("%d requests: %d, %d, %d, %d of classes 2 to 5", *fuzzRequests, classes[2].Load(), classes[3].Load(), classes[4].Load(), classes[5].Load())
	})
}
