package mgmt

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"

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
	case found != nil && found.body == largeBody && (r.ContentLength < 0 || r.ContentLength > maxBody):
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
