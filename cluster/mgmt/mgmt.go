// Package mgmt is the HTTP API of a node. It answers health checks to everybody and everything else
// to users with a tag: routes.go says which request needs which. Pages of other sites are refused,
// see cluster/origin.
package mgmt

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/origin"
)

// Limits of a request.
const (
	headerTimeout  = 10 * time.Second
	bodyTimeout    = 30 * time.Second // from the header to the end of the body
	restTimeout    = time.Second      // for more of a body that is not needed
	discardTimeout = time.Minute      // for all of it
	writeTimeout   = 30 * time.Second // for each part of an answer
	idleTimeout    = 2 * time.Minute
	maxHeader      = 64 << 10
	maxBody        = 1 << 20
	largeBody      = 20 << 20 // of a message or definitions
	largeBodies    = 2        // of more than maxBody, in memory at a time
)

// Server serves the API: it finds the endpoint of a request and checks that the user may use it.
// The answers are the business of the types of resources.
type Server struct {
	catalog   Catalog
	logins    Logins
	node      Node
	resources []resource
	slog      *slog.Logger
	guard     *origin.Guard
	audit     *audit.Log    // nil: nothing is audited
	large     chan struct{} // has an element for each large body that is in memory
	http      *http.Server
}

// New returns a server for a backend. It serves the requests that guard admits.
func New(b Backend, logger *slog.Logger, guard *origin.Guard) *Server {
	s := &Server{catalog: b.Catalog, logins: b.Logins, node: b.Node, resources: b.resources(), slog: logger, guard: guard, large: make(chan struct{}, largeBodies)}
	s.http = &http.Server{
		Handler: s.reporting(bounded(s.router())), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ConnContext:    withSocket,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve serves a listener until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the server. Requests in progress have until ctx ends.
func (s *Server) Close(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Handler answers requests as Serve does.
func (s *Server) Handler() http.Handler { return s.http.Handler }
