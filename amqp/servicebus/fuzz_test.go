package servicebus

import (
	"bytes"
	"net"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// octets is a client that sends all of it at once, and reads whatever comes.
type octets struct{ *bytes.Reader }

func (octets) Write(p []byte) (int, error)      { return len(p), nil }
func (octets) Close() error                     { return nil }
func (octets) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (octets) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (octets) SetDeadline(time.Time) error      { return nil }
func (octets) SetReadDeadline(time.Time) error  { return nil }
func (octets) SetWriteDeadline(time.Time) error { return nil }

// opening is what a client with all rights sends before its messages: on handle 0 they go to a queue, on 1 to a queue with
// sessions, on 2 to the node for tokens, on 3 and 4 to those of a queue and a subscription, on 5 to the controller. Handles from 6
// on receive.
func opening() []byte {
	b := []byte("AMQP\x03\x01\x00\x00")
	b = wire.AppendFrame(b, 0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00" + root + "\x00" + rootKey)})
	b = append(b, "AMQP\x00\x01\x00\x00"...)
	b = wire.AppendFrame(b, 0, &wire.Open{ContainerID: "c", MaxFrameSize: 1 << 20, ChannelMax: 9, Hostname: "host"})
	b = wire.AppendFrame(b, 1, &wire.Begin{IncomingWindow: 100, OutgoingWindow: 100, HandleMax: 100})
	targets := []wire.Composite{to("q"), to("s"), to("$cbs"), to("q/$management"), to("topic/Subscriptions/sub/$management"), &wire.Coordinator{}}
	for i, target := range targets {
		b = wire.AppendFrame(b, 1, &wire.Attach{Name: string(rune('a' + i)), Handle: uint32(i), Source: &wire.Source{}, Target: target})
	}
	for i, source := range []string{"q", "$cbs", "q/$management"} {
		handle := uint32(len(targets) + i)
		b = wire.AppendFrame(b, 1, &wire.Attach{Name: source, Handle: handle, Role: true, Source: &wire.Source{Address: wire.Some(source)}, Target: to("me")})
		b = wire.AppendFrame(b, 1, &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 100, OutgoingWindow: 100, Handle: wire.Some(handle), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](9)})
	}
	return b
}

// encoded is a message as octets.
func encoded(m *client.Message) []byte {
	b, err := m.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return b
}

// FuzzMessages sends a message to one of the nodes, as a batch, in a transaction or neither, and then an outcome of it: nothing
// panics, nothing is left.
func FuzzMessages(f *testing.F) {
	begin := opening()
	plain := textMessage("m")
	f.Add(byte(0), byte(0), plain)
	f.Add(byte(1), byte(1), encoded(batch("a", "b")))
	f.Add(byte(0), byte(1), encoded(&client.Message{Data: [][]byte{plain, {}, []byte("x")}}))
	f.Add(byte(2), byte(0), encoded(&client.Message{ApplicationProperties: map[string]any{"operation": "put-token", "type": typeSAS, "name": "sb://h/q"}, Value: sign("sb://h/q", root, rootKey)}))
	f.Add(byte(5), byte(0), controlMessage(codeDeclare))
	f.Add(byte(5), byte(0), controlMessage(codeDischarge, wire.AppendBinary(nil, make([]byte, transactionIDLen)), wire.AppendBool(nil, false)))
	lock := client.UUID(newSealer([16]byte{}).seal(fsm.Handle{Number: 1}))
	for name := range operations {
		f.Add(byte(3), byte(2), encoded(&client.Message{
			Properties: &client.MessageProperties{MessageID: "1", ReplyTo: new("me")}, ApplicationProperties: map[string]any{"operation": operationPrefix + name},
			Value: map[string]any{
				"lock-tokens": []client.UUID{lock}, "sequence-numbers": []int64{1}, "disposition-status": "abandoned", "session-id": "s", "message-count": int32(3),
				"from-sequence-number": int64(1), "top": int32(9), "skip": int32(0), "last-updated-time": time.UnixMilli(1), "enqueued-time-utc": time.UnixMilli(1),
				"rule-name": "r", "properties-to-modify": map[string]any{"p": int32(1)}, "messages": []any{map[string]any{"message": plain}},
			},
		}))
	}
	s := mustServe(f)
	f.Fuzz(func(t *testing.T, handle, how byte, message []byte) {
		transfer := &wire.Transfer{Handle: uint32(handle), DeliveryID: wire.Some[uint32](0), DeliveryTag: []byte{1}}
		switch how % 3 {
		case 1:
			transfer.MessageFormat = wire.Some[uint32](batchFormat)
		case 2:
			transfer.State = wire.State{Kind: wire.StateTransactional, Transactional: &wire.TransactionalState{TxnID: []byte{how}}}
		}
		b := append(wire.AppendTransfer(bytes.Clone(begin), 1, transfer, len(message)), message...)
		b = wire.AppendFrame(b, 1, &wire.Disposition{Role: true, First: 0, State: wire.State{Kind: wire.StateModified, Modified: wire.Modified{MessageAnnotations: message}}})
		s.ServeConn(octets{bytes.NewReader(b)})
		s.machines.take()
		if s.Panics() != 0 {
			t.Fatal("it panics")
		}
	})
}
