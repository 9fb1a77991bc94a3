package mgmt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"time"
)

// bounded limits the time to receive a request's body and to send its answer. If a request is answered before its
// body has arrived, the rest is read on for a while and thrown away, as a connection that is closed while its client
// sends takes the answer with it. Then the connection is closed.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		out := &timedWriter{w, c}
		if r.ContentLength == 0 {
			h.ServeHTTP(out, r)
			return
		}
		_ = c.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails in tests without a socket
		w.Header().Set("Connection", "close")
		b := &timedBody{ReadCloser: r.Body, answer: w.Header(), controller: c}
		r.Body = b
		h.ServeHTTP(out, r)
		if !b.whole {
			b.discard(c)
		}
	})
}

// reporting logs a panic while a request is served, as a fault of this program, and ends the
// connection.
func (s *Server) reporting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
				return
			case http.ErrAbortHandler:
			default:
				s.slog.Error("panic while serving an HTTP request", "method", r.Method, "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler) // which the server does not log again
		}()
		h.ServeHTTP(w, r)
	})
}

// timedBody is a request's body with a time limit.
type timedBody struct {
	io.ReadCloser
	answer     http.Header
	controller *http.ResponseController
	whole      bool
}

// Read implements io.Reader. Once the body is read the connection stays and its deadline is
// removed, since the server watches from then on whether the client hangs up.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.whole = true
		b.answer.Del("Connection")
		_ = b.controller.SetReadDeadline(time.Time{})
	}
	return n, err
}

// discard sends the answer, and reads on as long as the client sends: it may look for the answer only then.
func (b *timedBody) discard(c *http.ResponseController) {
	_ = c.Flush() // fails if there is nothing to send to
	end := time.Now().Add(discardTimeout)
	chunk := make([]byte, 32<<10)
	for now := time.Now(); now.Before(end); now = time.Now() {
		if c.SetReadDeadline(now.Add(restTimeout)) != nil {
			return // a test without a socket
		}
		if _, err := b.ReadCloser.Read(chunk); err != nil {
			return
		}
	}
}

// timedWriter writes an answer to a client that must read it in time.
type timedWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
}

// Write implements io.Writer.
func (w *timedWriter) Write(p []byte) (int, error) {
	_ = w.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.ResponseWriter.Write(p)
}

// Unwrap supports http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type socketKey struct{}

// withSocket keeps a request's connection for reportLogin.
func withSocket(ctx context.Context, socket net.Conn) context.Context {
	return context.WithValue(ctx, socketKey{}, socket)
}

// reportLogin tells the limiter of connections that the client of this one has logged in.
func reportLogin(ctx context.Context) {
	socket, _ := ctx.Value(socketKey{}).(net.Conn)
	if secure, ok := socket.(*tls.Conn); ok {
		socket = secure.NetConn()
	}
	if counted, ok := socket.(interface{ LoggedIn() }); ok {
		counted.LoggedIn()
	}
}
