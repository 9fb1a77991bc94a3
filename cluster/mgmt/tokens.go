package mgmt

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

// Tokens is what the API needs of the node to let others join. Errors that are
// *fsm.Refusal are the caller's fault.
type Tokens interface {
	// CreateToken makes a token that lets one node in, which must have a name
	// unless that is empty.
	CreateToken(ctx context.Context, ttl fsm.Millis, node string) (api.JoinToken, error)
	// Tokens lists those whose time is not over.
	Tokens() []api.JoinToken
	// RevokeToken takes a token back; false: there is none with this id.
	RevokeToken(ctx context.Context, id string) (bool, error)
}

// tokens are the resources of tokens.
func (s *Server) tokens() []resource {
	return []resource{
		{tokensPath, []endpoint{get(administrator, s.listTokens), post(administrator, s.createToken)}},
		{tokensPath + "/{id}", []endpoint{remove(administrator, s.revokeToken)}},
	}
}

const tokensPath = "/api/quorate/tokens"

func (s *Server) listTokens(w http.ResponseWriter, _ *request) {
	s.answer(w, http.StatusOK, orEmpty(s.node.Tokens()))
}

func (s *Server) createToken(w http.ResponseWriter, r *request) {
	var ask api.NewJoinToken
	if !s.read(w, r, &ask) {
		return
	}
	r.detail = map[string]any{"ttl": ask.TTL, "node": fsm.Short(ask.Node)}
	made, err := s.node.CreateToken(r.Context(), fsm.Millis(ask.TTL), ask.Node)
	if err != nil {
		s.failed(w, err)
		return
	}
	r.detail["token"] = made.ID
	s.answer(w, http.StatusCreated, made)
}

func (s *Server) revokeToken(w http.ResponseWriter, r *request) {
	known, err := s.node.RevokeToken(r.Context(), r.PathValue("id"))
	if err == nil && !known {
		s.notFound(w)
		return
	}
	s.changed(w, err, false)
}
