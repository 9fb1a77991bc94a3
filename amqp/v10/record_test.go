package v10_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	client "github.com/Azure/go-amqp"
)

var record = flag.String("v10.record", "", "NAME=COMMAND: TestRecord runs it, with HOST and PORT in its environment, and keeps what it sends as wire/testdata/recorded/NAME.hex; without a command go-amqp")

// TestRecord records what a stock client sends, from the login on, for the fuzz targets of package wire. The programs in their
// folder publish and receive a message of each kind, on a queue that is called seed.
func TestRecord(t *testing.T) {
	if *record == "" {
		t.Skip("-v10.record is not given")
	}
	s := mustServe(t, nil)
	s.mustDeclare("seed")
	name, command, _ := strings.Cut(*record, "=")
	sent := new(bytes.Buffer)
	addr, closed := s.mustTee(sent)
	if command == "" {
		s.addr = addr
		s.mustPlaySeed()
	} else {
		host, port, err := net.SplitHostPort(addr)
		must(t, err)
		run := exec.CommandContext(t.Context(), "sh", "-c", command)
		run.Env = append(os.Environ(), "HOST="+host, "PORT="+port)
		run.Dir = filepath.Join("wire", "testdata", "recorded")
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	closed.Wait()
	var text strings.Builder
	for part := range strings.SplitSeq(hex.Dump(sent.Bytes()), "\n") {
		if len(part) > 58 {
			text.WriteString(strings.TrimRight(part[10:58], " ") + "\n")
		}
	}
	must(t, os.WriteFile(filepath.Join("wire", "testdata", "recorded", name+".hex"), []byte(text.String()), 0o644))
}

// mustTee takes one client, whose octets go to the server and to a buffer; closed waits for its end.
func (s *server) mustTee(sent *bytes.Buffer) (addr string, closed *sync.WaitGroup) {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(s.t, err)
	s.t.Cleanup(func() { l.Close() })
	far := s.addr
	closed = new(sync.WaitGroup)
	closed.Go(func() {
		near, err := l.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		to, err := net.Dial("tcp", far)
		if err != nil {
			return
		}
		defer to.Close()
		go func() { _, _ = io.Copy(near, to) }()
		_, _ = io.Copy(io.MultiWriter(to, sent), near)
	})
	return l.Addr().String(), closed
}

// mustPlaySeed is the program of go-amqp.
func (s *server) mustPlaySeed() {
	s.t.Helper()
	ctx := s.t.Context()
	c := s.mustDial(s.t, nil)
	session := mustSession(s.t, c)
	sender := mustSender(s.t, session, "/queues/seed")
	subject := "s"
	for _, m := range []*client.Message{
		client.NewMessage([]byte("data")),
		{Value: map[string]any{"k": []any{int32(1), true, nil}}, Header: &client.MessageHeader{Durable: true, Priority: 5}},
		{Sequence: [][]any{{"a", uint64(1)}}, Properties: &client.MessageProperties{MessageID: uint64(7), Subject: &subject}, ApplicationProperties: map[string]any{"n": int64(-1)}, Annotations: client.Annotations{"x-k": "v"}},
	} {
		must(s.t, sender.Send(ctx, m, nil))
	}
	receiver, err := session.NewReceiver(ctx, "/queues/seed", &client.ReceiverOptions{Credit: 3})
	must(s.t, err)
	for i := range 3 {
		m, err := receiver.Receive(ctx, nil)
		must(s.t, err)
		switch i {
		case 0:
			must(s.t, receiver.AcceptMessage(ctx, m))
		case 1:
			must(s.t, receiver.RejectMessage(ctx, m, &client.Error{Condition: "app:bad", Description: "d"}))
		default:
			must(s.t, receiver.ModifyMessage(ctx, m, &client.ModifyMessageOptions{UndeliverableHere: true, Annotations: client.Annotations{"x-m": int32(1)}}))
		}
	}
	must(s.t, receiver.Close(ctx))
	must(s.t, c.Close())
}
