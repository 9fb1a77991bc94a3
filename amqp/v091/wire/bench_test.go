package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// hotPaths are what is done per message and must not allocate.
func hotPaths(tb testing.TB) map[string]func() {
	payload := func(m Method) []byte { return m.appendArgs(binary.BigEndian.AppendUint32(nil, ID(m))) }
	must := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	publish := payload(&BasicPublish{Exchange: "orders", RoutingKey: "orders.created.eu"})
	ack, nack, reject := payload(&BasicAck{DeliveryTag: 7}), payload(&BasicNack{DeliveryTag: 7}), payload(&BasicReject{DeliveryTag: 7})
	raw := withHeaders(Table{{"trace", String("0123456789abcdef")}, {"attempt", Int64(1)}})
	header := AppendHeader(nil, 1, ClassBasic, 100, raw)
	header = header[frameHeadSize : len(header)-1]
	exchange, key := []byte("orders"), []byte("orders.created.eu")
	body := make([]byte, 10000)
	dst := make([]byte, 0, 64<<10)
	edit := &Edit{Remove: FlagExpiration, SetHeaders: Table{{"x-acquired-count", Int64(2)}}}
	reused := struct {
		publish BasicPublishView
		ack     BasicAck
		nack    BasicNack
		reject  BasicReject
	}{}
	return map[string]func(){
		"decode publish":   func() { must(DecodePublish(publish, &reused.publish)) },
		"decode ack":       func() { must(DecodeAck(ack, &reused.ack)) },
		"decode nack":      func() { must(DecodeNack(nack, &reused.nack)) },
		"decode reject":    func() { must(DecodeReject(reject, &reused.reject)) },
		"decode header":    func() { must(second(DecodeHeader(header, ClassBasic, 40))) },
		"parse properties": func() { must(second(ParseProperties(raw))) },
		"edit properties":  func() { must(second(EditProperties(dst, raw, edit))) },
		"encode deliver":   func() { AppendDeliver(dst, 1, "ctag", 7, false, exchange, key) },
		"encode get-ok":    func() { AppendGetOK(dst, 1, 7, false, exchange, key, 3) },
		"encode ack":       func() { AppendAck(dst, 1, 7, true) },
		"encode nack":      func() { AppendNack(dst, 1, 7, true) },
		"encode header":    func() { AppendHeader(dst, 1, ClassBasic, 100, raw) },
		"encode body":      func() { AppendBody(dst, 1, body, 4096) },
		"encode heartbeat": func() { AppendHeartbeat(dst) },
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	for name, do := range hotPaths(t) {
		if n := testing.AllocsPerRun(100, do); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Reading a stream allocates the buffer of the Reader and nothing per frame.
func TestReadingDoesNotAllocate(t *testing.T) {
	loop := &repeated{stream: publishStream(1000)}
	r := NewReader(loop, 131072)
	body := make([]byte, 1000)
	if n := testing.AllocsPerRun(1000, func() { readPublish(t, r, body) }); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}

// publishStream encodes one publish with a body of this size.
func publishStream(size int) []byte {
	b := AppendMethod(nil, 1, &BasicPublish{Exchange: "orders", RoutingKey: "orders.created.eu"})
	b = AppendHeader(b, 1, ClassBasic, uint64(size), withHeaders(nil))
	return AppendBody(b, 1, make([]byte, size), 131072)
}

// readPublish reads what publishStream has encoded, the body into body.
func readPublish(tb testing.TB, r *Reader, body []byte) {
	var v BasicPublishView
	method, err := r.ReadFrame()
	if err == nil {
		err = DecodePublish(method.Payload, &v)
	}
	if err != nil {
		tb.Fatal(err)
	}
	header, err := r.ReadFrame()
	if err == nil {
		_, err = DecodeHeader(header.Payload, ClassBasic, 40)
	}
	if err != nil {
		tb.Fatal(err)
	}
	for rest := body; len(rest) > 0; {
		head, err := r.ReadFrameHeader()
		if err == nil {
			err = r.ReadPayloadInto(rest[:head.Size])
		}
		if err != nil {
			tb.Fatal(err)
		}
		rest = rest[head.Size:]
	}
}

// repeated gives the same stream again and again.
type repeated struct {
	stream []byte
	at     int
}

func (r *repeated) Read(b []byte) (int, error) {
	n := copy(b, r.stream[r.at:])
	r.at = (r.at + n) % len(r.stream)
	return n, nil
}

func BenchmarkHotPaths(b *testing.B) {
	for name, do := range hotPaths(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do()
			}
		})
	}
}

func BenchmarkReadPublish(b *testing.B) {
	for name, size := range map[string]int{"100B": 100, "10KiB": 10 << 10, "1MiB": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			stream := publishStream(size)
			r := NewReader(&repeated{stream: stream}, 131072)
			body := make([]byte, size)
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				readPublish(b, r, body)
			}
		})
	}
}

func BenchmarkDecodeMethod(b *testing.B) {
	m := &QueueDeclare{Queue: "orders", Durable: true, Arguments: Table{{"x-queue-type", String("quorum")}, {"x-expires", Int32(60000)}}}
	payload := m.appendArgs(binary.BigEndian.AppendUint32(nil, ID(m)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeMethod(payload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHostileTable is the dearest table of the default frame size: an
// array of voids, which take an octet each on the wire.
func BenchmarkHostileTable(b *testing.B) {
	fields := append(mustHex(b, `01 61 41 0001ffe0`), bytes.Repeat([]byte{TagVoid}, 0x1ffe0)...)
	b.SetBytes(int64(len(fields)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeFields(fields); err != nil {
			b.Fatal(err)
		}
	}
}
