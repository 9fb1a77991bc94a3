// Package mgmt is the HTTP API of a node. It answers health checks to
// everybody and everything else to administrators.
package mgmt

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Node is what the API needs of the node.
type Node interface {
	// Ready reports whether clients are served.
	Ready() bool
	// Administrator checks the credentials of a request.
	Administrator(ctx context.Context, user, password string, remote netip.Addr) bool
	// Replicas describes every queue replica on this node.
	Replicas() []api.Replica
	// Status describes the node and the others as it sees them.
	Status() api.Status
	// Clock describes the node's clock.
	Clock() api.Clock
	// Settings lists the settings of the whole cluster.
	Settings() []api.Setting
	// PutSetting gives a setting of the whole cluster a value; nil: the
	// program's. An error that is a *fsm.Refusal is the caller's fault.
	PutSetting(ctx context.Context, name string, value *int64) error
	// Settle makes the followers of all queues that this node leads learn
	// what is committed.
	Settle(ctx context.Context) error
	// Version is the product's version.
	Version() string
}

// Limits of a request.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	maxBody       = 1 << 20
)

// Server serves the API.
type Server struct {
	node Node
	slog *slog.Logger
	http *http.Server
}

// New returns a server for a node.
func New(node Node, logger *slog.Logger) *Server {
	s := &Server{node: node, slog: logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/health/checks/ready-to-serve-clients", s.readyCheck)
	mux.Handle("GET /api/version", s.administrators(s.version))
	mux.Handle("GET /api/quorate/replicas", s.administrators(s.replicas))
	mux.Handle("GET /api/quorate/status", s.administrators(s.status))
	mux.Handle("GET /api/quorate/clock", s.administrators(s.clock))
	mux.Handle("GET /api/quorate/settings", s.administrators(s.settings))
	mux.Handle("PUT /api/quorate/settings/{name}", s.administrators(s.putSetting))
	mux.Handle("DELETE /api/quorate/settings/{name}", s.administrators(s.deleteSetting))
	mux.Handle("POST /api/quorate/settle", s.administrators(s.settle))
	mux.Handle("GET /api/quorate/pprof/{profile}", s.administrators(profile))
	s.http = &http.Server{
		Handler: http.MaxBytesHandler(mux, maxBody), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve answers on a listener until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the server. Requests under way have until ctx ends.
func (s *Server) Close(ctx context.Context) error { return s.http.Shutdown(ctx) }

// administrators lets only administrators through.
func (s *Server) administrators(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		remote, err := netip.ParseAddrPort(r.RemoteAddr)
		if !ok || err != nil || !s.node.Administrator(r.Context(), user, password, remote.Addr()) {
			w.Header().Set("WWW-Authenticate", `Basic realm="quorate"`)
			s.answer(w, http.StatusUnauthorized, api.Failure{Error: "not_authorised", Reason: "Login failed"})
			return
		}
		h(w, r)
	})
}

func (s *Server) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		s.slog.Debug("answer not written", "error", err)
	}
}

func (s *Server) readyCheck(w http.ResponseWriter, _ *http.Request) {
	if s.node.Ready() {
		s.answer(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	s.answer(w, http.StatusServiceUnavailable, map[string]string{
		"status": "failed", "reason": "the node does not serve clients yet",
	})
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, api.Version{ProductVersion: s.node.Version()})
}

func (s *Server) replicas(w http.ResponseWriter, _ *http.Request) {
	list := s.node.Replicas()
	if list == nil {
		list = []api.Replica{}
	}
	s.answer(w, http.StatusOK, list)
}

// profile answers Go's profiles: cpu (for ?seconds=30), trace, and the named
// ones, such as heap and goroutine.
func profile(w http.ResponseWriter, r *http.Request) {
	switch name := r.PathValue("profile"); name {
	case "cpu":
		pprof.Profile(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Handler(name).ServeHTTP(w, r)
	}
}

func (s *Server) settle(w http.ResponseWriter, r *http.Request) {
	if err := s.node.Settle(r.Context()); err != nil {
		s.answer(w, http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
