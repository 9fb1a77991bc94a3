// Package origin decides by their origin which HTTP requests a node answers, so
// that no web page in a browser that can reach the node can use it, not even a page
// that knows a password.
//
// A page can attack a node in three ways. It can send requests to the node's
// address: browsers mark these in Sec-Fetch-Site or Origin. It can point its own
// name at the node's address after it was loaded (DNS rebinding): then only Host
// reveals it. And it can send forms, whose content types differ from JSON. Other
// programs send neither mark; they only need a login.
//
// The package does not distinguish users and does not answer requests itself.
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

// Guard knows the names by which a node can be reached.
type Guard struct {
	cross  http.CrossOriginProtection
	names  map[string]bool
	under  []string // ".example.org": every name with this suffix
	every  bool     // any name is accepted
	strict bool     // all programs, not only browsers, must use a known name
}

// New returns a guard of a node. own are the node's own names; empty ones are
// ignored. allowed are those that its operator has listed: names, *.NAME for all
// names below one, or * alone for any. If there is such a list, it applies to all
// programs, not only to browsers.
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

// Reasons for refusing a request.
var (
	errOrigin = errors.New("the request comes from another site")
	errHost   = errors.New("is not a name of this node; see the setting management.allowed_hosts")
)

// Check returns why a request is refused, or nil. It refuses requests by pages from
// other sites, whatever the method. It refuses a Host that is not a name of the node
// in requests over loopback, as from a browser on the same machine, and in requests
// that are marked as a browser's; in all requests if the operator has listed names.
func (g *Guard) Check(r *http.Request) error {
	asked := r.WithContext(r.Context())
	asked.Method = http.MethodPost // reading is not safe either: the answer has data
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

// knows reports whether a Host is an address or a name of the node. A page cannot
// use an address as its own name, nor localhost or a name below it. HTTP/1.0 clients
// send no Host.
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

// normal returns the form of a name in which names are compared.
func normal(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func fromBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}

// overLoopback reports whether a request came to a loopback address.
func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// HasType reports whether a request's body has an accepted type. Pages can send the
// types of forms to any site without a preflight request, so a browser's body must
// be declared as JSON. Other programs may omit the type, or send the default of
// their library, as curl does, but not a type that only forms have.
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

// SetHeaders makes browsers only show an answer's text: they do not run it, embed
// it into another page, cache it, or send its address to other sites.
func SetHeaders(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
}
