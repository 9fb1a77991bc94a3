// Package origin decides which HTTP requests a node answers by where they come
// from, so that no web page in the browser of somebody who reaches the node can
// use it, not even one that knows a password.
//
// Three ways lead from a page to a node. It may send requests to the node's
// address: browsers mark these in Sec-Fetch-Site or Origin. It may have its own
// name lead to the node's address once it is loaded (rebinding): then only Host
// tells. And it may send forms, which have other types of content than JSON.
// Programs send neither mark and are judged by their login alone.
//
// It does not tell users apart, and answers nothing itself.
package origin

import (
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Guard knows the names that a node is reached by.
type Guard struct {
	cross  http.CrossOriginProtection
	names  map[string]bool
	under  []string // ".example.org": every name that ends so
	every  bool     // any name will do
	strict bool     // programs, too, must use a known name
}

// New returns a guard of a node. own are the names that the node knows of
// itself; empty ones are left out. allowed are those that its operator has
// listed: names, *.NAME for all names below one, or * alone for any. If there is
// such a list, programs are held to it as browsers are.
func New(own, allowed []string) (*Guard, error) {
	g := &Guard{names: map[string]bool{}, strict: len(allowed) > 0}
	for _, name := range own {
		if name = normal(name); name != "" {
			g.names[name] = true
		}
	}
	for _, name := range allowed {
		below, isBelow := strings.CutPrefix(normal(name), "*.")
		switch {
		case name == "*":
			g.every = true
		case below == "" || strings.ContainsAny(below, "*/:@ "):
			return nil, fmt.Errorf("%q is neither a name, nor *.NAME, nor *", name)
		case isBelow:
			g.under = append(g.under, "."+below)
		default:
			g.names[below] = true
		}
	}
	return g, nil
}

// Why a request is refused.
var (
	errOrigin = errors.New("the request comes from another site")
	errHost   = errors.New("is not a name of this node; see the setting management.allowed_hosts")
)

// Check says why a request is refused. Whatever its method, one that a page of
// another site makes is. A Host that is no name of the node is refused over
// loopback, where a browser on the same machine would come from, and wherever
// the request is marked as a browser's; everywhere if the operator has listed
// names.
func (g *Guard) Check(r *http.Request) error {
	asked := r.WithContext(r.Context())
	asked.Method = http.MethodPost // what reads is not safe either: it answers with data
	if g.cross.Check(asked) != nil {
		return errOrigin
	}
	if !g.strict && !fromBrowser(r) && !overLoopback(r) {
		return nil
	}
	if !g.knows(r.Host) {
		return fmt.Errorf("%q %w", r.Host, errHost)
	}
	return nil
}

// knows reports whether a Host is an address or a name of the node. No page can
// have an address for its own name, nor localhost or a name below it. Clients
// of HTTP/1.0 send none.
func (g *Guard) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = normal(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if g.every || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") || g.names[host] {
		return true
	}
	for _, end := range g.under {
		if strings.HasSuffix(host, end) {
			return true
		}
	}
	return false
}

// normal is a name as names are compared.
func normal(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func fromBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}

// overLoopback reports whether a request came to a loopback address.
func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// HasType reports whether a request's body has a type that is read. Pages can
// send what forms send to any site without asking it first, so a browser's body
// must be JSON by name. Programs need not say what they send, or say what their
// library does of its own accord, as curl does; but not what only forms send.
func HasType(r *http.Request) bool {
	kinds := r.Header.Values("Content-Type")
	if r.ContentLength == 0 || len(kinds) == 0 && !fromBrowser(r) {
		return true
	}
	if len(kinds) != 1 {
		return false
	}
	switch kind, _, err := mime.ParseMediaType(kinds[0]); kind {
	case "application/json":
		return err == nil
	case "application/x-www-form-urlencoded":
		return err == nil && !fromBrowser(r)
	}
	return false
}

// SetHeaders has browsers do nothing with an answer but show its text: not run
// it, not put it into another page, not keep it, not tell others where it was.
func SetHeaders(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
}
