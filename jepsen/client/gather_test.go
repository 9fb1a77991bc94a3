package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// mustPipe returns the two ends of a TCP connection on loopback.
func mustPipe(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

func TestGatheredKeepsBytesAndOrder(t *testing.T) {
	near, far := mustPipe(t)
	g := gather(near)
	var want bytes.Buffer
	for i := range 2000 {
		want.Write(bytes.Repeat([]byte{byte(i)}, i))
	}
	var all sync.WaitGroup
	var got []byte
	var readErr error
	all.Go(func() { got, readErr = io.ReadAll(far) })
	for rest := want.Bytes(); len(rest) > 0; {
		n, err := g.Write(rest[:min(777, len(rest))])
		if err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if readErr != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d of %d bytes came, or others: %v", len(got), want.Len(), readErr)
	}
	if _, err := g.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
}

func TestGatheredReportsBrokenConnection(t *testing.T) {
	near, far := mustPipe(t)
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	g := gather(near)
	defer g.Close()
	block := make([]byte, 64<<10)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if _, err := g.Write(block); err != nil {
			return
		}
	}
	t.Error("writes to a closed connection go on without an error")
}
