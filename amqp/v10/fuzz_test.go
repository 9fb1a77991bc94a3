package v10_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10"
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

// FuzzConnection sends octets from the first one on: nothing panics, and nothing is left. The seeds are what stock clients
// have sent.
func FuzzConnection(f *testing.F) {
	names, err := filepath.Glob("wire/testdata/recorded/*.hex")
	if err != nil || len(names) == 0 {
		f.Fatalf("%d recordings, %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(f, err)
		stream, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		must(f, err)
		f.Add(stream)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b := amqptest.NewBroker()
		s := &server{t: t, broker: b}
		s.mustDeclare("seed")
		var err error
		s.Server, err = amqp.New(amqp.Config{Protocols: []amqp.Protocol{v10.Protocol{}}, Broker: b, OperationTimeout: time.Second, MaxMessageSize: 1 << 16})
		must(t, err)
		s.ServeConn(octets{bytes.NewReader(data)})
		must(t, s.Shutdown(context.Background()))
		b.AwaitSessions(0)
		if s.Panics() != 0 || s.Held() != 0 {
			t.Errorf("%d panics, %d octets are held for nobody", s.Panics(), s.Held())
		}
	})
}
