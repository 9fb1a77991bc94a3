package mgmt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener without a network.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if k, ok := <-p; ok {
		return k, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// peerOf is a pipe with an address.
type peerOf struct{ net.Conn }

func (peerOf) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// A body that does not come is waited for only so long, and not at all if nobody
// wants it; a request that is whole leaves the connection open.
func TestBodiesThatDoNotCome(t *testing.T) {
	const login = "Authorization: Basic cm9vdDpyb290\r\n" // root:root
	for name, try := range map[string]struct {
		request string
		after   time.Duration // when the connection ends
		status  int           // 0: no answer
	}{
		"nobody logs in":  {"PUT /api/users/u HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n", 0, 401},
		"somebody":        {"PUT /api/users/u HTTP/1.1\r\nHost: h\r\n" + login + "Content-Length: 10\r\n\r\n{", bodyTimeout, 408},
		"chunks":          {"PUT /api/users/u HTTP/1.1\r\nHost: h\r\n" + login + "Transfer-Encoding: chunked\r\n\r\n", bodyTimeout, 408},
		"unread":          {"GET /api/whoami HTTP/1.1\r\nHost: h\r\n" + login + "Content-Length: 10\r\n\r\n", 0, 200},
		"no end of lines": {"GET /api/whoami HTTP/1.1\r\nHost: h\r\n", headerTimeout, 0},
		"whole":           {"PUT /api/users/u HTTP/1.1\r\nHost: h\r\n" + login + "Content-Length: 11\r\n\r\n" + `{"tags":""}`, idleTimeout, 201},
		"without a body":  {"GET /api/whoami HTTP/1.1\r\nHost: h\r\n" + login + "\r\n", idleTimeout, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newWorld(t).server
				l := make(pipes, 1)
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				client, server := net.Pipe()
				l <- peerOf{server}
				began := time.Now()
				go io.Copy(client, strings.NewReader(try.request))
				in := bufio.NewReader(client)
				if try.status != 0 {
					answer, err := http.ReadResponse(in, nil)
					if err != nil || answer.StatusCode != try.status {
						t.Fatalf("%v, %v, want %d", answer, err, try.status)
					}
					if _, err := io.Copy(io.Discard, answer.Body); err != nil {
						t.Fatal(err)
					}
				}
				if n, err := io.Copy(io.Discard, in); n != 0 || err != nil {
					t.Errorf("then %d bytes, %v", n, err)
				}
				// A server that hangs up early lingers for half a second.
				if took := time.Since(began); took < try.after || took > try.after+restTimeout+time.Second {
					t.Errorf("the connection ends after %v, want %v", took, try.after)
				}
				client.Close()
				close(l)
				if err := <-served; !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A client that sends all of a large body before it looks for the answer gets the answer.
func TestRefusedUpload(t *testing.T) {
	s := newWorld(t).server
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	const size = 32 << 20
	const root = "Authorization: Basic cm9vdDpyb290\r\n"
	for _, x := range []struct {
		path, login string
		want        int
	}{{"/api/definitions", "", 401}, {"/api/nothing", root, 404}, {"/api/exchanges/%2F/amq.default/publish", root, 413}} {
		k, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(k, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Length: %d\r\n\r\n", x.path, x.login, size)
		sent, err := io.Copy(k, io.LimitReader(zeros{}, size))
		if err != nil || sent != size {
			t.Errorf("%d bytes are sent, %v", sent, err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(k), nil)
		if err != nil || answer.StatusCode != x.want {
			t.Errorf("%s: %v, %v, want %d", x.path, answer, err, x.want)
		}
		k.Close()
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	<-served
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Large bodies are received two at a time; small ones, and what reads as it goes, do not wait for
// them.
func TestLargeBodiesAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newWorld(t).server
		l := make(pipes)
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		var conns []net.Conn
		post := func(length int, body string) *bufio.Reader {
			client, server := net.Pipe()
			conns = append(conns, client)
			l <- peerOf{server}
			go fmt.Fprintf(client, "POST /api/exchanges/%%2F/amq.default/publish HTTP/1.1\r\nHost: h\r\nAuthorization: Basic cm9vdDpyb290\r\n"+
				"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, body)
			return bufio.NewReader(client)
		}
		status := func(in *bufio.Reader) int {
			answer, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode
		}
		const small = `{"properties":{},"routing_key":"none","payload":"","payload_encoding":"string"}`
		var waiting []*bufio.Reader
		for range largeBodies {
			waiting = append(waiting, post(2<<20, "{"))
			synctest.Wait()
		}
		if got := status(post(2<<20, "{")); got != 503 {
			t.Errorf("a third large body: %d", got)
		}
		if got := status(post(len(small), small)); got != 200 {
			t.Errorf("a small one meanwhile: %d", got)
		}
		for _, in := range waiting {
			if got := status(in); got != 408 {
				t.Errorf("a body that does not come: %d", got)
			}
		}
		if got := status(post(2<<20, small+strings.Repeat(" ", 2<<20-len(small)))); got != 200 {
			t.Errorf("a large one afterwards: %d", got)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		close(l)
		<-served
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestPanicIsLogged: a panic while a request is served is in the log, at a level that shows by
// default, and the client's connection ends.
func TestPanicIsLogged(t *testing.T) {
	var log strings.Builder
	s := &Server{slog: slog.New(slog.NewTextHandler(&log, nil))}
	serve := func(p any) (left any) {
		defer func() { left = recover() }()
		s.reporting(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if p != nil {
				panic(p)
			}
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/x", nil))
		return left
	}
	if left := serve(nil); left != nil || log.Len() > 0 {
		t.Errorf("without a panic: %v, logged %q", left, log.String())
	}
	if left := serve(http.ErrAbortHandler); left != http.ErrAbortHandler || log.Len() > 0 {
		t.Errorf("aborted: %v, logged %q", left, log.String())
	}
	if left := serve("injected"); left != http.ErrAbortHandler || !strings.Contains(log.String(), "level=ERROR") ||
		!strings.Contains(log.String(), "path=/api/x panic=injected") || !strings.Contains(log.String(), "bounded_test.go") {
		t.Errorf("panicked: %v, logged %q", left, log.String())
	}
}
