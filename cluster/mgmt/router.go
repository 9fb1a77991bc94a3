package mgmt

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/mgmt/console"
	"github.com/quorate/quorate/cluster/origin"
)

// router finds the resource of a path. It works on the escaped path, since names may contain or be
// a slash: http.ServeMux takes a segment that is a slash for the end of the path.
func (s *Server) router() http.Handler {
	type row struct {
		path      string
		segments  []string
		endpoints []endpoint
	}
	var rows []row
	for _, x := range s.resources {
		rows = append(rows, row{x.path, strings.Split(x.path, "/"), x.endpoints})
	}
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w := &responder{out, s.slog, fromScript(r)}
		origin.SetHeaders(w.Header())
		w.Header().Set("Vary", "accept, accept-encoding, origin")
		if file := console.Find(r.URL.EscapedPath()); file != nil {
			if r.Method == http.MethodGet || r.Method == http.MethodHead {
				file.Serve(w, r)
			} else {
				w.noMethod(r.Method, []string{http.MethodGet, http.MethodHead})
			}
			return
		}
		segments := strings.Split(strings.TrimSuffix(r.URL.EscapedPath(), "/"), "/")
		nameDefault(segments)
		for _, x := range rows {
			if names, ok := match(x.segments, segments); ok {
				r.Pattern = x.path
				for name, value := range names {
					r.SetPathValue(name, value)
				}
				s.serve(w, r, x.endpoints)
				return
			}
		}
		w.notFound()
	})
}

// fromScript reports whether a script of a page sends a request, and shows itself what is answered.
func fromScript(r *http.Request) bool { return r.Header.Get("Sec-Fetch-Dest") == "empty" }

// nameDefault names the default exchange where the path of an exchange, or of bindings from one, has
// no name: to clients of AMQP its name is empty, and they send it as it is.
func nameDefault(segments []string) {
	for _, at := range []struct {
		of    string
		place int
	}{{"exchanges", 4}, {"bindings", 5}} {
		if len(segments) > at.place && segments[1] == "api" && segments[2] == at.of && segments[at.place] == "" {
			segments[at.place] = defaultName
		}
	}
}

// match reports whether a path belongs to a resource, and returns the names in it. A name is never
// empty.
func match(pattern, segments []string) (names map[string]string, ok bool) {
	if len(pattern) != len(segments) {
		return nil, false
	}
	names = map[string]string{}
	for i, want := range pattern {
		got, err := url.PathUnescape(segments[i])
		name, isName := strings.CutPrefix(want, "{")
		if err != nil || isName && got == "" || !isName && got != want {
			return nil, false
		}
		if isName {
			names[strings.TrimSuffix(name, "}")] = got
		}
	}
	return names, true
}

// serve finds the method and checks that the user may use it. What everybody may use is answered to
// every page, too: it discloses only that the node is running.
func (s *Server) serve(w *responder, r *http.Request, endpoints []endpoint) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	need := management // even to learn what exists
	var found *endpoint
	var allowed []string
	for i, e := range endpoints {
		if e.method == method {
			found = &endpoints[i]
		}
		if e.method == method || e.need == anybody {
			need = e.need
		}
		allowed = append(allowed, e.method)
		if e.method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	limit := int64(maxBody)
	if found != nil {
		limit = cmp.Or(found.body, limit)
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	if need != anybody && !s.lets(w, r) {
		return
	}
	in := s.login(w, r, need)
	switch {
	case in == nil:
	case found != nil && found.body > maxBody && (r.ContentLength < 0 || r.ContentLength > maxBody):
		s.performLarge(w, in, found)
	case found != nil:
		s.perform(w, in, found)
	default:
		w.noMethod(method, allowed)
	}
}

// performLarge performs a request whose body may take tens of megabytes, unless as many as may
// are being performed.
func (s *Server) performLarge(w *responder, r *request, e *endpoint) {
	select {
	case s.large <- struct{}{}:
		defer func() { <-s.large }()
		s.perform(w, r, e)
	default:
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "too many large request bodies at a time; try again later"})
	}
}

// lets reports whether a request may come from its origin with the body it has; otherwise it is
// answered.
func (s *Server) lets(w *responder, r *http.Request) bool {
	if err := s.guard.Check(r); err != nil {
		w.answer(http.StatusForbidden, api.Failure{Error: "forbidden", Reason: err.Error()})
		return false
	}
	if !origin.HasType(r) {
		w.answer(http.StatusUnsupportedMediaType, api.Failure{Error: "unsupported_media_type", Reason: "a body must have the header Content-Type: application/json"})
		return false
	}
	return true
}

// noMethod answers a method that the path does not support.
func (w *responder) noMethod(method string, allowed []string) {
	w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
	if method == http.MethodOptions {
		w.WriteHeader(http.StatusOK)
		return
	}
	w.answer(http.StatusMethodNotAllowed, api.Failure{Error: "method_not_allowed", Reason: "Method Not Allowed"})
}

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
